"""Settings: secrets stay hidden, services can be swapped, children get the same (M-045, requirements §2.7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.errors import SettingsError
from flujo_client.redact import mask_url

DATABASE = "postgresql://app:hunter2secret@db/app"
BROKER = "redis://:hunter2secret@cache:6379/0"
KEY = "0123456789abcdef"

WORD = st.text("abcdefgh", min_size=1, max_size=8)
TIMES = st.floats(min_value=0.01, max_value=1e6)


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        (DATABASE, "postgresql://app:***@db/app"),
        (BROKER, "redis://:***@cache:6379/0"),
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("postgresql://db/app?user=a&password=x&sslmode=off", "postgresql://db/app?user=a&password=***&sslmode=off"),
        ("not a url", "not a url"),
        ("postgresql://app:hunter2/db", "postgresql://app:***/db"),
        (
            "postgresql://a:5432,b:5433/db?target_session_attrs=any",
            "postgresql://a:5432,b:5433/db?target_session_attrs=any",
        ),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis://app@cache:6379/0", "redis://app@cache:6379/0"),
    ],
)
def test_mask_url_hides_the_password_only(url, masked):
    assert mask_url(url) == masked


@given(st.text(max_size=30).map(lambda text: f"secret{text}secret"))
def test_mask_url_hides_any_password(password):
    """A password may hold every character a URL gives a meaning to."""
    masked = mask_url(f"postgresql://app:{password}@db/app")
    assert password not in masked
    assert mask_url(masked) == masked


def test_whatever_shows_or_dumps_settings_shows_no_secret():
    """By type, not by name: a debugger, an error report or a dump of ours has nothing to leave out."""
    settings = Settings(database_url=DATABASE, broker_url=BROKER, signing_keys={"k": KEY})
    dumps = settings.model_dump_json(), str(settings.model_dump()), str(settings.model_dump(mode="json"))
    for text in (repr(settings), str(settings), f"{settings}", *dumps):
        assert "hunter2secret" not in text
        assert KEY not in text
        assert "postgresql://app:***@db/app" in text


def test_an_error_about_a_url_shows_no_secret():
    with pytest.raises(SettingsError) as caught:
        ConfigManager(environ={"DATABASE_URL": "mysql://app:hunter2secret@db"}).settings()
    assert "hunter2secret" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("password", ["hun/ter2secret", "hun#ter2secret", "hun?ter2secret"])
def test_a_redis_url_that_no_one_could_read_is_refused_at_once(password):
    """redis-py would quote what it takes for a port."""
    with pytest.raises(SettingsError, match="%2F") as caught:
        ConfigManager(environ={"DATABASE_URL": DATABASE, "REDIS_URL": f"redis://:{password}@cache/0"}).settings()
    assert "ter2" not in str(caught.value)
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://app:hunter2 secret@db/shop", "postgresql://app:hunter2secret@db/shop\n"])
def test_a_url_with_a_space_is_refused_for_that(url):
    with pytest.raises(
        SettingsError, match="must be a URL without spaces or control characters; write a space"
    ) as caught:
        ConfigManager(environ={"DATABASE_URL": url, "REDIS_URL": BROKER}).settings()
    assert "hunter2" not in str(caught.value)


SENTINELS = "sentinel://:hunter2secret@a:26379/2;sentinel://:hunter2secret@b:26379/2"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (SENTINELS, "names Sentinels but sentinel_master is missing: set FLUJO_SENTINEL_MASTER"),
        ("redis://:hunter2secret@a:6379/0;redis://b:6379/0", "must name one Redis server, or Sentinels"),
        (f"{SENTINELS};redis://b:6379/0", "must name one Redis server, or Sentinels"),
        (
            "sentinels://:hunter2secret@a:26379/0",
            "must be a URL that starts with redis:// or rediss:// or sentinel://|not through sentinels",
        ),
    ],
)
@pytest.mark.parametrize("name", ["FLUJO_BROKER_URL", "FLUJO_RESULT_BACKEND_URL"])
def test_several_servers_in_a_redis_url_are_refused_with_the_way_out(url, said, name):
    environ = {"DATABASE_URL": DATABASE, "REDIS_URL": BROKER, name: url}
    with pytest.raises(SettingsError, match=said) as caught:
        ConfigManager(environ=environ).settings()
    assert "hunter2secret" not in str(caught.value)


def test_sentinels_have_a_master_and_perhaps_a_password_which_is_hidden():
    environ = {"DATABASE_URL": DATABASE, "REDIS_URL": SENTINELS, "FLUJO_SENTINEL_MASTER": "mymaster"}
    settings = ConfigManager(environ=environ).settings()
    assert settings.sentinel_options() == {"master_name": "mymaster"}
    settings = ConfigManager(environ={**environ, "FLUJO_SENTINEL_PASSWORD": "hunter2secret"}).settings()
    assert settings.sentinel_options()["sentinel_kwargs"]["password"] == "hunter2secret"
    assert "hunter2secret" not in repr(settings)
    assert ConfigManager(environ=settings.as_environment()).settings() == settings


@pytest.mark.parametrize(
    ("written", "used"),
    [
        ("rediss://cache/0", "rediss://cache/0?ssl_cert_reqs=required"),
        ("rediss://cache/0?ssl_ca_certs=/ca", "rediss://cache/0?ssl_ca_certs=/ca&ssl_cert_reqs=required"),
        ("rediss://cache/0?ssl_cert_reqs=none", "rediss://cache/0?ssl_cert_reqs=none"),
    ],
)
def test_certificates_are_verified_unless_the_url_says_otherwise(written, used):
    environ = {"DATABASE_URL": DATABASE, "REDIS_URL": written}
    settings = ConfigManager(environ=environ).settings()
    assert (settings.broker(), settings.results()) == (used, used)


def test_pydantic_s_own_error_shows_no_secret_either():
    """Who builds Settings by hand meets pydantic's error, which would quote its input."""
    with pytest.raises(ValueError, match="database_url") as caught:
        Settings(database_url="mysql://app:hunter2secret@db")
    assert "hunter2secret" not in str(caught.value)


def test_urls_are_given_whole_to_who_asks_for_them():
    settings = Settings(database_url=DATABASE, broker_url=BROKER)
    assert (settings.database(), settings.broker(), settings.results()) == (DATABASE, BROKER, BROKER)
    with pytest.raises(SettingsError, match="no services are set"):
        Settings().database()


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Settings().mode = "production"  # type: ignore[misc]


def test_with_services_makes_embedded_settings_real_and_keeps_the_rest():
    settings = Settings(worker={"concurrency": 2}, log={"json": False}).with_services(DATABASE, BROKER)
    assert (settings.database(), settings.results(), settings.is_embedded) == (DATABASE, BROKER, False)
    assert (settings.worker.concurrency, settings.log.as_json) == (2, False)


def test_with_services_keeps_a_result_backend_of_its_own():
    own = Settings(database_url=DATABASE, broker_url=BROKER, result_backend_url="redis://results")
    assert own.with_services(DATABASE, "redis://new").results() == "redis://results"


def test_with_services_refuses_what_is_no_service():
    with pytest.raises(SettingsError, match="broker_url"):
        Settings().with_services(DATABASE, "sqs://mq")


settings_of_all_kinds = st.builds(
    Settings,
    database_url=st.just(DATABASE),
    broker_url=st.just(BROKER),
    result_backend_url=st.sampled_from([BROKER, "rediss://results/1"]),
    embedded_dir=WORD,
    allowed_imports=st.lists(WORD, min_size=1, max_size=3),
    signing_keys=st.dictionaries(WORD, st.text("abc:=/+", min_size=16, max_size=24), max_size=3),
    failpoints=WORD | st.just(""),
    demo_model=WORD | st.none(),
    limits=st.fixed_dictionaries({"snapshot_inline_bytes": st.integers(0, 65536)}),
    worker=TIMES.map(lambda renew: {"renew_s": renew, "lease_s": renew * 2}),
    retry=st.fixed_dictionaries({"base_s": st.floats(0, 60), "jitter": st.floats(0, 1)}),
    agents=st.fixed_dictionaries({"agent_timeout_s": TIMES}),
    log=st.fixed_dictionaries({"json": st.booleans(), "level": st.sampled_from(["DEBUG", "ERROR"])}),
)


@given(settings_of_all_kinds)
def test_a_child_process_reads_the_same_settings(settings):
    """`as_environment` and the reader are each other's inverse; the order of signing keys counts."""
    read = ConfigManager(environ=settings.as_environment()).settings()
    assert read == settings
    assert list(read.signing_keys) == list(settings.signing_keys)


def test_a_child_keeps_the_rest_of_the_environment_and_loses_what_is_replaced():
    parent = {"PATH": "/bin", "REDIS_URL": "redis://old", "DATABASE_URL": DATABASE}
    child = ConfigManager(environ=parent).child_environment(Settings().with_services(DATABASE, BROKER))
    assert child["PATH"] == "/bin"
    assert ConfigManager(environ=child).settings().broker() == BROKER
