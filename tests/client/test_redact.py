"""Redaction: tables of secrets and of texts that are none, and arbitrary JSON."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside import redact as patterns
from trackside.redact import DEPTH, REDACTED, judged, redact, redact_code, redact_command, redact_text

if TYPE_CHECKING:
    from collections.abc import Callable

LETTERS = "aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"
HEX = "0123456789abcdef0123456789abcdef01234567"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLWJ5dGVz"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n7Zb3\n-----END RSA PRIVATE KEY-----"

SHAPES = [
    f"sk-{LETTERS}",
    f"sk-proj-{LETTERS}_{LETTERS}",
    f"sk-ant-api03-{LETTERS}-{LETTERS}",
    f"hf_{LETTERS[:34]}",
    f"ghp_{LETTERS}",
    f"gho_{LETTERS}",
    f"ghs_{LETTERS}",
    f"github_pat_{LETTERS}_{LETTERS}",
    f"glpat-{LETTERS[:20]}",
    "xoxb-123456789012-abcdefABCDEF",
    "xoxp-123456789012-abcdefABCDEF",
    "xoxa-2-123456789012",
    "AKIAIOSFODNN7EXAMPLE",
    f"ya29.{LETTERS}",
    f"nvapi-{LETTERS}",
    f"AIza{LETTERS[:35]}",
    JWT,
    PEM,
    "-----BEGIN PRIVATE KEY-----\nMIIEcut+off",
]

SECRET_KEYS = [
    *("password", "PASSWORD", "db_password", "dbPassword", "db-passwd", "db.passphrase", "pwd", "user pwd"),
    *("secret", "client_secret", "clientSecret", "secrets", "credential", "aws_credentials"),
    *("apikey", "apiKey", "API_KEY", "api-key", "OPENAI_API_KEY", "openaiAPIKey", "APIkey", "api_keys"),
    *("access_key", "accessKeyId", "private_key", "privateKey", "secretkey"),
    *("auth", "use_auth_token", "authorization", "Authorization", "bearer", "cookie", "sessionCookie", "password2"),
]

PLAIN: list[dict[str, Any]] = [
    {"max_tokens": 4096},
    {"tokens": "abcdefghijklmnopqrstuvwxyz"},
    {"tokenizer": "sentencepiece-unigram-32k"},
    {"tokenizer_name": "a_name_of_more_than_sixteen"},
    {"pad_token": "[PAD]"},
    {"eos_token": "</s>"},
    {"eos_token": "<|end_of_a_long_text|>"},
    {"unk_token": "[unused_token_number_0]"},
    {"eos_token": "<｜end▁of▁sentence｜>"},  # noqa: RUF001  as DeepSeek writes it
    {"token": "meta-llama/Llama-2-70b-chat-hf"},
    {"token_file": "/run/secrets/the-token-of-mine"},
    {"token_file": "./secrets/the-token-of-mine"},
    {"token": "sixteen or more letters, and they are words"},
    {"token": "short"},
    {"token_dropout": 0.1},
    {"use_auth_token": True},
    {"password": None},
    {"password": ""},
    {"password": 0},
    {"author": "me", "authors": ["me", "you"]},
    {"key": "abc", "keys": ["q", "k", "v"], "monkey": "x", "key_padding_mask": "left"},
    {"access": "read", "api": "https://api.example.org/v1", "private": "yes", "public_key": "ssh-ed25519 AAAA"},
    {"secretary": "x", "cookiecutter": "x", "compass": "x", "keypoint_api_": "x"},
    {"forward_pass": "fused", "pass": "first"},
    {"commit": HEX, "sha": HEX},
    {"model": "sk-learn-random-forest-baseline", "name": "task-1234567890123456", "hf_home": "hf_hub_download_cache"},
    {"url": "http://host:8080/path@v2", "git": "ssh://git@github.com/me/it.git", "mail": "me@example.org"},
    {"cmd": "train.py --lr=0.1 --max-tokens 4096 --name=a:b@c"},
    {"text": "the bearer instruments of it; authorization was given; the password is in the wiki"},
    {"text": "auth:\n  user: bob\ntokens: 4096, token: short\nkey: value\nstep = 3"},
    {"text": "\x1b[32mloss\x1b[0m: 0.5"},
    {"text": "auth-model: loss: NaN at step 3"},
    {"text": "cookie_loss = 0.5, the password-model: better, secret_santa: 3"},
    {"token": {"embedding": "rotary_position_embedding"}},
    {"cert": "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----"},
    {"nan": "nan", "n": None, "b": False, "f": 1.5, "i": 10**30, "e": {}, "l": []},
]

TEXTS = [
    (f"key is sk-{LETTERS}, keep it", "key is [redacted], keep it"),
    (f"a {PEM} b", "a [redacted] b"),
    ("postgres://me:hunter2@db:5432/x", "postgres://me:[redacted]@db:5432/x"),
    ("redis://:hunter2@cache/0", "redis://:[redacted]@cache/0"),
    ("https://me:p@ss:w@proxy", "https://me:[redacted]@proxy"),
    ("from a://u:p@h to b://v:q@i", "from a://u:[redacted]@h to b://v:[redacted]@i"),
    ("host=db password=hunter2 user=me", "host=db password=[redacted] user=me"),
    ("x?api_key=abc&y=1", "x?api_key=[redacted]&y=1"),
    ("export HF_TOKEN='abcdefghijklmnop'", "export HF_TOKEN='[redacted]'"),
    ("train.py --password hunter2 --lr 1", "train.py --password [redacted] --lr 1"),
    ('{"api_key": "a b", "lr": "x"}', '{"api_key": "[redacted]", "lr": "x"}'),
    ("{'api_key': 'it\\'s'}", "{'api_key': '[redacted]'}"),
    ("Authorization: Bearer abcdefgh", "Authorization: Bearer [redacted]"),
    ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic [redacted]"),
    ("api-key: abcdefgh12", "api-key: [redacted]"),
    ("X-Auth-Token: abcdefgh12", "X-Auth-Token: [redacted]"),
    ("bearer abcdef0123456789", "bearer [redacted]"),
    ("password: hunter6secret", "password: [redacted]"),
    ("DB_PASSWORD = hunter5secret", "DB_PASSWORD = [redacted]"),
    ("12:01:02 INFO the Password: hunter2, next", "12:01:02 INFO the Password: [redacted], next"),
    ("db:\n  passphrase: correct horse battery\n  port: 1", "db:\n  passphrase: [redacted]\n  port: 1"),
    ("password:\nhunter4\nepoch 1", "password:\n[redacted]\nepoch 1"),
    ("secrets:\r\n  - hunter4\r\nepoch 1", "secrets:\r\n  - [redacted]\r\nepoch 1"),
    ("auth:\n  user: bob\n  password: 'a b'", "auth:\n  user: bob\n  password: [redacted]"),
    ("Private key = abc", "Private key = [redacted]"),
    ("password =x and secret == None", "password =[redacted] and secret == None"),
    ("the password: ab=cd", "the password: [redacted]"),
    ("AuthError: 401 Unauthorized", "AuthError: 401 Unauthorized"),
    ("\x1b(Bpass\x1b[mword: hunter2", "password: [redacted]"),
    (
        f"wandb: Paste an API key from your profile and hit enter: {HEX}",
        f"wandb: Paste an API key from your profile and hit enter: {REDACTED}",
    ),
    (f"API key\n{HEX}", f"API key\n{HEX}"),
    (f"wandb_v1_{LETTERS}", REDACTED),
    ("a\n\x1b[31mpassword\x1b[0m: hunter2\n\x1b[1mb\x1b[0m", "a\npassword: [redacted]\n\x1b[1mb\x1b[0m"),
    ("pass\x1b[0mword=hunter2", "password=[redacted]"),
    ("\x1b]0;password=hunter2\x07a", "\x1b]0;password=[redacted]"),
    (
        "begins with -----BEGIN RSA PRIVATE KEY-----\nas all of them do.\n",
        "begins with [redacted]\nas all of them do.\n",
    ),
    ("-----BEGIN RSA PRIVATE KEY-----\nepoch\nstep\nloss\nrank\n", "[redacted]\nrank\n"),
    ("a -----BEGIN EC PRIVATE KEY-----\\nMIIE\\n-----END EC PRIVATE KEY----- b", "a [redacted] b"),
    (f"{PEM}\n{PEM}\nb", "[redacted]\n[redacted]\nb"),
    (
        "1 -----BEGIN RSA PRIVATE KEY-----\n2 Proc-Type: 4,ENCRYPTED\n" + f"3 {LETTERS * 2}\n" * 99 + "4 the end\n",
        "1 [redacted]\n4 the end\n",
    ),
]

COMMANDS = [
    (["train.py", "--api-key=X"], ["train.py", "--api-key=[redacted]"]),
    (["train.py", "--api-key=X Y, Z", "a"], ["train.py", "--api-key=[redacted]", "a"]),
    (["train.py", "--api-key", "X", "b"], ["train.py", "--api-key", "[redacted]", "b"]),
    (["train.py", "--api-key", "--lr", "1"], ["train.py", "--api-key", "--lr", "1"]),
    (["env", "HF_TOKEN=abcdefghijklmnop", "x"], ["env", "HF_TOKEN=[redacted]", "x"]),
    (["++wandb.api_key=X", "+model.token=ab"], ["++wandb.api_key=[redacted]", "+model.token=ab"]),
    (["--env=HF_TOKEN=abcdefghijklmnop"], ["--env=HF_TOKEN=[redacted]"]),
    (["--wandb-key", HEX], ["--wandb-key", "[redacted]"]),
    (["--x", SHAPES[0], "-k", JWT], ["--x", "[redacted]", "-k", "[redacted]"]),
    (["sh", "-c", "PASSWORD=x python t.py"], ["sh", "-c", "PASSWORD=[redacted] python t.py"]),
    (["curl", "-H", "Authorization: Bearer abcdefgh"], ["curl", "-H", "Authorization: Bearer [redacted]"]),
    (["--token", "abcdefghijklmnop", "--password", "-", "x"], ["--token", "[redacted]", "--password", "-", "x"]),
]

KEPT_COMMANDS = [
    ["python", "train.py", "--lr=0.1", "--max-tokens", "4096", "--tokenizer", "a/b", "--eos-token", "</s>"],
    ["python", "-m", "pkg", "--token", "<|endoftext_of_mine|>", "--author", "me", "--", "-", "", "--name="],
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(SECRET_KEYS), inner),
    max_leaves=15,
)
words = st.text(alphabet="abcdeghijlmnoqrtuvwyz ABC.,!?()\n", max_size=60)
fragments = st.sampled_from(
    [*SHAPES, *SECRET_KEYS, "=", ": ", "://", "@", ":", '"', "'", "--", " ", "\\", REDACTED, "token", LETTERS, "a"]
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[:12])
def test_a_known_shape_is_a_secret_under_any_key(shape: str) -> None:
    assert redact({"anything": shape, "list": [shape]}) == {"anything": REDACTED, "list": [REDACTED]}
    assert redact_text(f"before {shape}").startswith("before [redacted]")


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_key_that_names_a_secret_hides_its_text(key: str) -> None:
    assert redact({key: "x"}) == {key: REDACTED}
    assert redact({"a": [{key: "hunter2", "b": 1}]}) == {"a": [{key: REDACTED, "b": 1}]}


@pytest.mark.parametrize("key", ["token", "HF_TOKEN", "hfToken", "session-token"])
def test_a_token_of_the_form_of_a_credential_is_one(key: str) -> None:
    assert redact({key: "abcdefghijklmnop"}) == {key: REDACTED}
    assert redact({key: "Zm9vYmFy/YmF6cXV4+w=="}) == {key: REDACTED}


@pytest.mark.parametrize("key", ["wandb_key", "wandb", "WANDB_KEY", "my_api"])
def test_forty_hexadecimal_digits_are_a_key_when_the_name_suggests_it(key: str) -> None:
    assert redact({key: HEX}) == {key: REDACTED}


@pytest.mark.parametrize("config", PLAIN, ids=lambda config: json.dumps(config)[:40])
def test_a_value_that_is_no_secret_is_retained(config: dict[str, Any]) -> None:
    assert redact(config) == config


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        ({"secrets": {"db": "hunter2", "port": 1}}, {"secrets": {"db": REDACTED, "port": 1}}),
        ({"passwords": ["a", "b", 3]}, {"passwords": [REDACTED, REDACTED, 3]}),
        ({"api": {"key": "x", "url": "y"}}, {"api": {"key": REDACTED, "url": "y"}}),
        ({"token": ["abcdefghijklmnop"]}, {"token": [REDACTED]}),
    ],
)
def test_what_lies_within_a_secret_is_judged_by_its_name(config: Any, stored: Any) -> None:
    assert redact(config) == stored


@pytest.mark.parametrize(("text", "stored"), TEXTS)
def test_a_text_loses_its_secret_and_nothing_else(text: str, stored: str) -> None:
    assert redact_text(text) == stored
    assert redact({"note": text}) == {"note": stored}


def test_the_name_of_a_run_makes_no_secret_of_what_follows() -> None:
    assert redact_text("auth: loss: NaN; password=hunter2", named=True) == "auth: loss: NaN; password=[redacted]"


@pytest.mark.parametrize(("argv", "stored"), COMMANDS)
def test_a_command_loses_its_secrets(argv: list[str], stored: list[str]) -> None:
    assert redact_command(argv) == stored


@pytest.mark.parametrize("argv", KEPT_COMMANDS)
def test_a_command_without_secrets_is_retained(argv: list[str]) -> None:
    assert redact_command(argv) == argv


def test_the_order_of_keys_is_retained() -> None:
    config = {"z": 1, "password": "x", "a": {"y": 1, "b": 2}}
    assert [list(redact(config)), list(redact(config)["a"])] == [["z", "password", "a"], ["y", "b"]]


def test_the_configuration_itself_is_not_changed() -> None:
    config = {"password": "x", "list": [{"secret": "y"}]}
    redact(config)
    assert config == {"password": "x", "list": [{"secret": "y"}]}


def test_what_is_nested_too_deep_is_not_stored() -> None:
    deep: Any = "hunter2"
    for _ in range(100_000):
        deep = [deep]
    stored = redact(deep)
    for _ in range(DEPTH):
        (stored,) = stored
    assert stored == REDACTED
    loop: dict[str, Any] = {}
    loop["again"] = loop
    assert REDACTED in json.dumps(redact(loop))


@given(json_values)
def test_no_json_makes_it_raise_and_twice_is_once(value: Any) -> None:
    once = redact(value)
    assert repr(redact(once)) == repr(once)


@given(st.lists(st.text() | fragments))
def test_no_command_makes_it_raise_and_none_gets_longer(argv: list[str]) -> None:
    assert len(redact_command(argv)) == len(argv)


@given(words)
def test_a_text_without_secrets_is_left_as_it_is(text: str) -> None:
    assert redact_text(text) == text
    assert redact({"note": text, "n": [text]}) == {"note": text, "n": [text]}


@given(st.lists(fragments | st.text(max_size=5), max_size=12))
def test_no_text_makes_it_raise(parts: list[str]) -> None:
    assert isinstance(redact_text("".join(parts)), str)


@given(st.lists(st.sampled_from(SHAPES[:-1]) | words, max_size=12), st.sampled_from([" ", ", ", "\n", "=", "/", '"']))
def test_no_known_shape_is_left_in_a_text(parts: list[str], between: str) -> None:
    stored = redact_text(between.join(parts))
    assert not any(shape in stored for shape in SHAPES)


WAYS: dict[str, Callable[[str], object]] = {
    "text": redact_text,
    "named": lambda text: redact_text(text, named=True),
    "judged": judged,
    "setting": lambda text: patterns._ASSIGNED.sub("", text),  # these two only where a secret may be named
    "line": lambda text: patterns._MEMBER.sub("", text),
    "config": lambda text: redact({"token": text, text: "x"}),
    "command": lambda text: redact_command([text, "--password", text]),
}
UNITS = [
    *("a", "A", "aA", "-", "+", "~", "-+", "+-~", ".", "/", "/a", "@", ":", "=", " ", "\\", '\\"', "\\\n", "\n"),
    *(
        "sk-",
        "hf_",
        "eyJ",
        "eyJaaaaaaaa.",
        ".eyJaaaaaaaa",
        "://",
        "://a:",
        "://a:b",
        "a:@",
        "a=",
        "a='",
        'a="',
        "a-",
        "+a",
    ),
    *('"a":"', "'a': \"", '"a": "\\', "'a' : ", '"a', "--a ", "--a  -", '--a "', "-----BEGIN PRIVATE KEY-----"),
    *(
        "-----BEGIN ",
        "-----BEGIN A PRIVATE KEY",
        "authorization: ",
        "authorization:a ",
        "bearer ",
        "bearer a",
        "bearer a1",
        "api key",
        "api key a",
        "api key: ",
        "a: ",
        "a:\n",
        "password:\n",
        "- a: ",
        "\x1b",
        "\x1b[",
        "\x1b[3",
        "\x1b]",
        "-----BEGIN PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\nMIIE",
    ),
]
ENDS = ("", "=", '"', "!")


def assert_linear(way: Callable[[str], object], begin: str, unit: str, end: str) -> None:
    """Assert that eight times the text takes about eight times as long; a quadratic cost would take 64 times."""

    def seconds(size: int) -> float:
        text = begin + unit * (size // len(unit)) + end
        begun = time.thread_time()
        way(text)
        return time.thread_time() - begun

    for _ in range(3):  # whoever else uses the machine may slow one of them, but not all
        if seconds(16_000) < 24 * seconds(2_000) + 0.05:
            return
    pytest.fail(f"{begin!r} + {unit!r} * n + {end!r}")


@pytest.mark.parametrize("way", WAYS)
def test_the_cost_grows_with_the_text_and_no_faster(way: str) -> None:
    for unit in UNITS:
        for end in ENDS:
            assert_linear(WAYS[way], "", unit, end)


SIGNIFICANT = st.text(alphabet="aA0_-+~.@:/='\"&;,\\ \n", min_size=1, max_size=5)
PIECES = st.sampled_from(UNITS) | SIGNIFICANT


@given(
    st.sampled_from(sorted(WAYS)), st.just("") | PIECES, st.lists(PIECES, min_size=1, max_size=3), st.just("") | PIECES
)
def test_no_repetitive_text_costs_more_than_it_is_long(way: str, begin: str, units: list[str], end: str) -> None:
    assert_linear(WAYS[way], begin, "".join(units), end)


@pytest.mark.parametrize("before", ["", "+", "++", "~", "-", "--", "---", "----", "+-", "x+", "x~-", " -+-", "+++++++"])
def test_a_name_is_found_behind_any_signs(before: str) -> None:
    assert redact_text(f"{before}api_key=abc") == f"{before}api_key=[redacted]"


IN_CODE = [
    f'wandb.login(key="{"0123456789abcdef" * 3:.40}")',
    f'os.environ["WANDB_API_KEY"] = "{"0123456789abcdef" * 3:.40}"',
    "os.environ['DB_PASSWORD'] = '0123456789abcdef'",
    'os.environ.setdefault("DB_PASSWORD", "0123456789abcdef")',
    'API_KEY = (\n    "0123456789abcdef"\n)',
    'PASSWORD = """0123456789abcdef"""',
    'PASSWORD: Final[str] = rb"0123456789abcdef"',
    'parser.add_argument("--password", default="0123456789abcdef")',
    'password = "hunter2" + f"0123456789abcdef{name}"',
]


@pytest.mark.parametrize("line", IN_CODE)
def test_a_secret_in_code_is_redacted_however_it_is_given_its_name(line: str) -> None:
    before, after = "depth = 3  # of the network\n", '\nrun.push({"loss": loss})\n'
    found = redact_code(f"{before}{line}{after}")
    assert found is not None
    assert found.startswith(before)
    assert found.endswith(after)
    assert "0123456789abcdef" not in found


@pytest.mark.parametrize(
    "line",
    [
        'tokenizer.pad_token = "<|endoftext|>"',
        'best = max(found, key="loss".count)',
        'def login(password):\n    """Log in."""',
        'if password:\n    mode = "train"',
    ],
)
def test_other_code_stays(line: str) -> None:
    assert redact_code(f"{line}\n") == f"{line}\n"


def test_what_is_not_python_is_no_code() -> None:
    assert redact_code("PK\x03\x04 password = 'x' (") is None
