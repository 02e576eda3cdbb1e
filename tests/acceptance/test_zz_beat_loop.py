import random, time, subprocess, sys, signal, os, pytest
sys.path.insert(0, "/work/main/tests/acceptance")
from test_deployed import watched
from fleet import Site
@pytest.mark.parametrize("n", range(60))
def test_it(site, tmp_path, n):
    file = tmp_path / "alive"
    with watched(site, "beat", file) as (beat, log):
        end = time.time()+60
        while not file.exists():
            assert time.time() < end, log()
        time.sleep(random.random()*0.004)
        beat.terminate()
        try:
            beat.wait(timeout=15)
        except subprocess.TimeoutExpired:
            print(log())
            subprocess.run(["/tmp/tools/uvenv/bin/python","-m","pip","-q","install","py-spy"])
            print(subprocess.run(["/tmp/tools/uvenv/bin/py-spy","dump","--pid",str(beat.pid)],capture_output=True,text=True).stdout)
            raise
