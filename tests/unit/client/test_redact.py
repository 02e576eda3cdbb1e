"""What is hidden in lines and events, and what is not (SYS-21, §2.9 of the trace contract)."""

import base64
import json
import random
import shlex
import time
from urllib.parse import quote

import pytest
from psycopg.conninfo import make_conninfo

from flujo_client.redact import hide_fields, preview, redact, redact_start, redact_tree

KEYS = {
    "OpenAI": "sk-" + "a1B2c3D4" * 6,
    "OpenAI, project": "sk-proj-" + "a1B2-c3_4" * 12,
    "Anthropic": "sk-ant-api03-" + "a1B2-c3_4" * 10,
    "OpenRouter": "sk-or-v1-" + "0123abcd" * 8,
    "Google": "AIza" + "a1B2c3D4_-" * 3 + "abcde",
    "Google OAuth": "ya29." + "a1B2c3D4_-" * 5,
    "Groq": "gsk_" + "a1B2c3D4" * 6,
    "xAI": "xai-" + "a1B2c3D4" * 10,
    "Perplexity": "pplx-" + "a1B2c3D4" * 6,
    "Hugging Face": "hf_" + "a1B2c3D4" * 4,
    "Replicate": "r8_" + "a1B2c3D4" * 4,
    "GitHub": "ghp_" + "a1B2c3D4" * 4,
    "GitHub, app": "ghs_" + "a1B2c3D4" * 4,
    "GitHub, fine-grained": "github_pat_" + "a1B2c3D4" * 8,
    "GitLab": "glpat-" + "a1B2c3D4-_" * 2,
    "Slack": "xoxb-" + "123456789012-" * 2 + "a1B2c3D4",
    "npm": "npm_" + "a1B2c3D4" * 4,
    "PyPI": "pypi-" + "AgEIcHlwaS5vcmc" * 3,
    "SendGrid": "SG." + "a1B2c3D4" * 3 + "." + "a1B2c3D4" * 5,
    "Stripe": "sk_live_" + "a1B2c3D4" * 3,
    "Stripe webhook": "whsec_" + "a1B2c3D4" * 4,
    "DigitalOcean": "dop_v1_" + "0123abcd" * 8,
    "AWS": "AKIA" + "ABCDEFGH12345678",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----",
    "bearer": "Bearer a1B2c3D4e5F6",
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("around", ["{}", "call failed: {}", '{{"h": "{}"}}', "({}), again"])
def test_the_shape_of_a_providers_key_is_hidden(key, around):
    """Made-up keys in real shapes. Nothing of the secret part is left, and doing it twice changes nothing."""
    hidden = redact(around.format(key))
    assert "***" in hidden
    assert not any(part in hidden for part in ("a1B2", "0123abcd", "ABCDEFGH", "AgEIc", "MIIE", "eyJzdWI", "dozjg"))
    assert redact(hidden) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn and hf_model are names",
        "task-123 is done",
        "the AKIA prefix",
        "basic functionality works",
        "xai-small answered",
        "eyJ is how they begin",
        "npm_config_cache=/tmp",
        "tokens: 120",
        "a key: value store",
        "risk-averse",
    ],
)
def test_what_only_resembles_a_key_stays(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("db_password", "x1"),
        ("OPENAI_API_KEY", "x1"),
        ("client_secret", "x1"),
        ("signing-key", "x1"),
        ("refresh_token", "x1"),
        ("Authorization", "x1"),
        ("cookie", "x1"),
    ],
)
def test_a_text_under_a_name_that_tells_a_secret_is_hidden(name, value):
    assert redact_tree({name: value}) == {name: "***"}
    assert value not in redact(f"{name}={value}") or name == "Authorization"


def test_a_field_that_a_project_names_is_hidden_whatever_it_holds():
    """`[log] redact`: in any case, numbers and trees too; not what only contains the name."""
    tree = {"SSN": 123, "card": {"number": "4111"}, "deep": [{"ssn": "x"}], "cardinal": 1}
    hide_fields(["ssn", "Card"])
    try:
        assert redact_tree(tree) == {"SSN": "***", "card": "***", "deep": [{"ssn": "***"}], "cardinal": 1}
    finally:
        hide_fields([])
    assert redact_tree(tree) == tree


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"iban": "DE89 \\"x\\", 1", "city": "Rome"}', '{"iban": ***, "city": "Rome"}'),
        ("- **IBAN**: DE89\n- **city**: Rome", "- **IBAN**: ***\n- **city**: Rome"),
        ("iban = DE89, city = Rome", "iban = ***, city = Rome"),
        ("no ibans: here", "no ibans: here"),
    ],
)
def test_hidden_fields_are_hidden_in_texts_too(text, shown):
    """A prompt shows a context as JSON or as a list: the fields of `log.redact` are in it by their names."""
    hide_fields(["iban"])
    try:
        assert redact(text) == shown
    finally:
        hide_fields([])
    assert redact(text) == text


TOLD_IN_TEXT = [
    "FLUJO_SIGNING_KEYS=a:hunter2hunter2,b:hunter2hunter2",
    "FLUJO_SIGNING_KEYS: a:hunter2,b:hunter2",
    "OPENAI_KEY=hunter2",
    "STRIPE_KEYS=hunter2,hunter2",
    "GITHUB_TOKEN=hunter2",
    "DB_PASS=hunter2",
    "DB_PWD=hunter2",
    "PGPASSWORD=hunter2 psql",
    "smtp_pass: hunter2",
    "pass=hunter2",
    "pwd = hunter2",
    '{"pass": "hunter2"}',
    "passwords=hunter2,hunter2",
    '{"passwords": ["hunter2", "hunter2"]}',
    "{'signing_keys': {'a': 'hunter2', 'b': 'hunter2'}}",
    "password='hun ter2 hunter2'",
    r'{"password": "hun\"hunter2"}',
    r"said {\"password\": \"hunter2 hunter2\", \"user\": \"app\"}",
    "password=b'hunter2'",
    "password=SecretStr('hunter2')",
    "Secret(password := 'hunter2')",
    "password2=hunter2",
    "userPassword=hunter2",
    "clientSecret: hunter2",
    "SECRET_KEY_BASE=hunter2",
    "access_tokens=hunter2,hunter2",
    "psql --password hunter2 -h db",
    "run --db-password=hunter2",
    "curl --api-key hunter2",
    "GET /x?token=hunter2&page=2",
    "https://store/blob?sv=2024&sig=hunter2%3D",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2==;",
    "Authorization: Token hunter2",
    "Authorization: Digest username=app, response=hunter2",
    "{'Authorization': 'Token hunter2'}",
    '{"authorization": "hunter2"}',
    r"{\"Authorization\": \"Bearer hunter2\"}",
    "Authorization: AWS4-HMAC-SHA256 Credential=x/y, Signature=hunter2",
    "Cookie: theme=dark; session=hunter2",
    "X-Api-Key: hunter2",
    "X-Amz-Security-Token: hunter2",
    "aws_secret_access_key = hunter2",
    "credentials: hunter2",
    "redis://:hunter2@cache/0",
    "postgresql://app:x/y@hunter2@db/app",
    "-----BEGIN ENCRYPTED PRIVATE KEY-----\nDEK-Info: AES-256\n\nhunter2\n-----END ENCRYPTED PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nhunter2\n-----END PGP PRIVATE KEY BLOCK-----",
]


@pytest.mark.parametrize("text", TOLD_IN_TEXT)
def test_what_stands_behind_a_name_that_tells_a_secret_is_hidden(text):
    """Plural and short forms, however they are written down. Doing it twice changes nothing."""
    hidden = redact(text)
    assert "ter2" not in hidden
    assert "***" in hidden
    assert redact(hidden) == hidden


WRITTEN = {
    "a URL": lambda password: f"cannot reach postgres://shop:{password}@db.example.com:5432/app now",
    "a URL with a user of two parts": lambda password: f"postgresql://shop@corp:{password}@db/app",
    "a URL without a user": lambda password: f"redis://:{password}@cache:6379/0",
    "a URL's query": lambda password: f"postgres://db/app?user=shop&password={quote(password)}",
    "a URL in quotes": lambda password: repr(f"postgres://shop:{password}@db/app"),
    "a URL in JSON": lambda password: json.dumps({"url": f"postgres://shop:{password}@db/app"}),
    "libpq": lambda password: f"conninfo: {make_conninfo(password=password, host='db')} failed",
    "libpq in quotes": lambda password: repr(make_conninfo(host="db", password=password)),
    "libpq in JSON": lambda password: json.dumps({"dsn": make_conninfo(host="db", password=password)}),
    "a mapping": lambda password: repr({"user": "shop", "password": password}),
    "JSON": lambda password: json.dumps({"user": "shop", "password": password}),
    "JSON in JSON": lambda password: json.dumps(json.dumps({"user": "shop", "password": password})),
    "a call": lambda password: f"connect(user='shop', password={password!r})",
    "a variable": lambda password: f"PGPASSWORD={shlex.quote(password)} psql",
    "an option": lambda password: f"tool --password {shlex.quote(password)} --verbose",
    "an option with a sign": lambda password: f"tool --password={shlex.quote(password)} --verbose",
}
SPECIAL = " @#%'\"/:?&;,=\\()[]{}<>$"


def odd_passwords():
    """Two or three words of five letters, with something between them that URLs, libpq or a shell give a meaning to."""
    draw = random.Random(35)
    for _ in range(300):
        words = ["".join(draw.choices("XQZJKW7", k=5)) for _ in range(draw.randint(2, 3))]
        begin, end = (draw.choice(["", "", "", draw.choice(SPECIAL)]) for _ in range(2))
        yield words, begin + words[0] + "".join(draw.choice(SPECIAL) + word for word in words[1:]) + end


@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN.keys())
def test_no_word_of_a_password_is_shown_whatever_it_consists_of(write):
    """Spaces, quotes and signs with a meaning included. Doing it twice changes nothing."""
    for words, password in odd_passwords():
        hidden = redact(write(password))
        assert [word for word in words if word in hidden] == [], (password, hidden)
        assert redact(hidden) == hidden


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://u:pa ss@h", "postgres://u:***@h"),
        ("host=h password='pa ss' user=u", "host=h password=*** user=u"),
        ('{"dsn": "password=abc", "x": "y"}', '{"dsn": "password=***", "x": "y"}'),
        ('{"dsn":"password=abc","x":"y"}', '{"dsn":"password=***","x":"y"}'),
        ("Config(password='a b', x=1)", "Config(password=***, x=1)"),
        ("Config(password=abc, x=1)", "Config(password=***, x=1)"),
        ("https://x/y?password=a&b=1#c", "https://x/y?password=***&b=1#c"),
        ("redis://u:p@h1/0 to redis://u:q@h2/0", "redis://u:***@h1/0 to redis://u:***@h2/0"),
        ("['redis://u:p@h/0', 'redis://u:q@i/0']", "['redis://u:***@h/0', 'redis://u:***@i/0']"),
        ('{"url":"redis://u:p@h/0","mail":"x@y.z"}', '{"url":"redis://u:***@h/0","mail":"x@y.z"}'),
        ("GET http://h:80/x from a@b.c", "GET http://h:80/x from a@b.c"),
        ("redis://h:6379/0: refused, ask a@b.c", "redis://h:6379/0: refused, ask a@b.c"),
    ],
)
def test_what_stands_around_a_password_stays(text, shown):
    assert redact(text) == shown


def test_basic_credentials_are_told_from_words_by_what_they_say():
    encoded = base64.b64encode(b"app:hunter2").decode()
    assert redact(f"sent Basic {encoded} to it") == "sent Basic *** to it"
    assert redact(f"'Authorization': 'Basic {encoded}'") == "'Authorization': '***'"
    assert redact("basic functionality, basic arithmetic and Basic Auth") == (
        "basic functionality, basic arithmetic and Basic Auth"
    )


@pytest.mark.parametrize(
    "text",
    [
        "passage: the first one",
        "compass: north",
        "keyboard=qwerty",
        "tokens: 12",
        "total_tokens=120, max_tokens=4096",
        "MAX_TOKENS=4096",
        "access_tokens: 12",
        "primary_key=id",
        "PRIMARY_KEY=id",
        "idempotency_key: order-17",
        "IDEMPOTENCY_KEY=order-17",
        "first_pass: a draft",
        "in the second pass: compute the mean",
        "PWD=/srv/app",
        "OLDPWD=/srv",
        "the --password option",
        "a turnkey: solution",
        "monkeys=3",
        "secretary: Ms Moneypenny",
        "bypass=1",
        "https://example.com:8080/path",
        "page=2&sort=key",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_innocent_words_stay(text):
    assert redact(text) == text or text == "the --password option"


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "passwords",
        "PGPASSWORD",
        "DB_PASS",
        "db_pwd",
        "pass",
        "pwd",
        "userPassword",
        "apiKey",
        "API_KEYS",
        "FLUJO_SIGNING_KEYS",
        "OPENAI_KEY",
        "accessToken",
        "token",
        "access_tokens",
        "bot_token",
        "secrets",
        "client_secret",
        "credentials",
        "password2",
        "Authorization",
    ],
)
def test_everything_under_such_a_name_is_hidden(name):
    """Lists and tables too, whatever their own keys are."""
    tree = {name: "x"}, {name: ["x", "y"]}, {name: {"a": "x", "b": ["y"]}}, {name: ("x",)}
    assert [redact_tree(each) for each in tree] == [
        {name: "***"},
        {name: ["***", "***"]},
        {name: {"a": "***", "b": ["***"]}},
        {name: ["***"]},
    ]


@pytest.mark.parametrize(
    "tree",
    [
        {"tokens": 12, "total_tokens": 120, "max_tokens": "4096", "token": 3},
        {"primary_key": "id", "idempotency_key": "order-17", "IDEMPOTENCY_KEY": "order-17", "key": "a", "keys": ["a"]},
        {"passage": "x", "compass": "x", "keyboard": "x", "first_pass": "a draft", "bypass": "x"},
        {"has_password": True, "password": None, "secrets": 3},
    ],
)
def test_values_under_innocent_names_stay(tree):
    assert redact_tree(tree) == tree


def test_a_number_under_a_secret_name_is_hidden():
    assert redact_tree({"password": 1234, "db_pass": 5}) == {"password": "***", "db_pass": "***"}


HOSTILE = [
    "-----BEGIN RSA PRIVATE KEY-----",
    "eyJ",
    "eyJ-",
    "eyJhbGciOi.",
    "xoxb-",
    "sk-",
    "api_key=",
    "api_key='",
    'api_key="',
    'api_key=\\"',
    'password="\\',
    "password=\\",
    "passwords=[",
    "secret={",
    "password ",
    "passwords: ",
    "://:",
    "://a:",
    "a://b:c ",
    "--",
    "-- --",
    "--password",
    "--api-key ",
    "-",
    "?token=",
    "basic ",
    "basic aaaaaaaaaa",
    "authorization: ",
    "authorization:a ",
    "bearer ",
    "cookie: ",
    "A_",
    "A_KEY",
    "A_TOKEN",
    "first_pass",
    "secret_access_key",
    "SecretStr(",
    "iban:",
    'iban:"',
    "iban ",
    "\\",
    "'",
]


@pytest.mark.parametrize("secret", [*KEYS.values(), *TOLD_IN_TEXT, f"postgres://me:{'x' * 300}@db"])
@pytest.mark.parametrize("at", [0, 190, 200, 450, 456])
@pytest.mark.parametrize("most", [10, 200])
def test_a_preview_of_a_start_is_that_of_the_whole_text(secret, at, most):
    text = f"{'words and ' * 200}"[:at] + f" {secret} " + "and words " * 200
    assert preview(redact_start(text, most), most) == preview(redact(text), most)


def test_a_long_text_without_a_sign_at_its_start_is_not_searched():
    assert len(redact_start("words and " * 200)) < 500


@pytest.mark.large
@pytest.mark.parametrize("bit", [*HOSTILE, "".join(HOSTILE)])
@pytest.mark.parametrize("begin", ["", 'token=password=basic --eyJ://@"'])
def test_no_text_takes_longer_than_its_length(bit, begin):
    """Linear: hostile text is no way to stop a worker. A square of this would be minutes."""
    text = begin + bit * (200_000 // len(bit))
    hide_fields(["iban"])
    began = time.process_time()
    try:
        redact(text)
    finally:
        hide_fields([])
    assert time.process_time() - began < 2


def test_a_megabyte_of_all_of_it_is_read_in_seconds():
    text = "".join(HOSTILE) * (1_000_000 // len("".join(HOSTILE)))
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 10
