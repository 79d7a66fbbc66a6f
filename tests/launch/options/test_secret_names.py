"""Secrets are hidden by their names and by their form, and innocent words are shown."""

import pytest

from tfdist.launch.options.secret_names import (
    hide_in_command,
    hide_in_value,
    hide_in_variable,
    is_secret_name,
)

SECRETS = (
    *("MYSQL_PWD", "DB_PASSWD", "DB_PASS", "REDIS_AUTH", "GH_PAT", "PGPASSWORD", "SSHPASS"),
    *("HF_TOKEN", "my_secret", "CLIENT_SECRET_ID", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID"),
    *("GOOGLE_CREDENTIALS", "SENTRY_DSN", "apiKey", "dbPassword", "AUTH_TOKEN", "KEY", "TOKEN2"),
    *("API_KEYS", "REDISCLI_AUTH", "SLACK_WEBHOOK", "JWT", "GPG_PASSPHRASE", "TOKEN_FILE"),
    *("--auth", "--db-pass", "--secret-file", "--password", "--api-key", "--hf_token", "--pwd"),
    *("--pass", "--ssh-key", "--access-tokens", "db.password", "--user-creds"),
)
INNOCENT = (
    *("KEYBOARD", "MONKEY", "HOCKEY", "PATH", "PWD", "OLDPWD", "AUTHOR", "XAUTHORITY", "COMPASS"),
    *("SSH_AUTH_SOCK", "OS_AUTH_URL", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PAD_TOKEN_ID"),
    *("BYPASS", "PASSES", "SORT_KEY", "SECRETARY", "COOKIECUTTER", "PATH_ID", "FILE", "OMP_PLACES"),
    *("TF_CONFIG", "PYTHONPATH", "DISPLAY", "", "_", "TFDIST_RUN", "PATTERN", "PASSENGERS"),
    *("--passes", "--num-pass", "--forward-pass", "--key-metric", "--tokenizer", "--max-tokens"),
    *("--eos-token", "--port", "--no-auth", "--keys", "--signature", "--author", "--path", "-p"),
)


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_of_a_secret_hides_its_value(name: str) -> None:
    assert is_secret_name(name)
    assert hide_in_variable(name, "hush") == "***"
    assert hide_in_command(["a", f"{name}=hush,hush", "b"]) == ["a", f"{name}=***", "b"]
    if name.startswith("-"):
        assert hide_in_command(["a", name, "hush", "b"]) == ["a", name, "***", "b"]


@pytest.mark.parametrize("name", INNOCENT)
def test_an_innocent_name_hides_nothing(name: str) -> None:
    assert not is_secret_name(name)
    words = ["a", name, "5", f"{name}=5"]
    assert hide_in_command(words) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:hush@proxy:3128/a?b=c", "http://me:***@proxy:3128/a?b=c"),
        ("postgres://me:h@sh@host/db", "postgres://me:***@host/db"),
        ("redis://:hush@host", "redis://:***@host"),
        ("me:hush@proxy:3128", "me:***@proxy:3128"),
        ("https://0123456789abcdef0123@sentry.example/1", "https://***@sentry.example/1"),
        ("https://x.example/a?sig=hush&sv=2", "https://x.example/a?sig=***&sv=2"),
        ("https://x.example/a?X-Amz-Signature=hush", "https://x.example/a?X-Amz-Signature=***"),
        ("a=1,password=hush,b=2", "a=1,password=***,b=2"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ", "***"),
        ("-----BEGIN PRIVATE KEY-----\nhush", "***"),
    ],
)
def test_a_secret_is_known_by_its_form(text: str, shown: str) -> None:
    assert hide_in_value(text) == shown
    assert hide_in_variable("DATABASE_URL", text) == shown
    assert hide_in_command([text, f"--url={text}"]) == [shown, f"--url={shown}"]


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8080/a/b?c=d",
        "hdfs://name:9000/user/me",
        "ssh://git@host/repository",
        "git@host:me/repository",
        "gs://bucket/folder@2",
        "10:20@30",
        '{"cluster": {"worker": ["127.0.0.1:10378", "127.0.0.1:10379"]}}',
        "--map-by=ppr:2:node",
    ],
)
def test_other_addresses_are_shown(text: str) -> None:
    assert hide_in_value(text) == text
    assert hide_in_command([text]) == [text]


def test_a_password_behind_the_letter_p_is_hidden_and_a_port_is_not() -> None:
    assert hide_in_command(["mysql", "-pPASSWORD", "-phunter2", "-psesame"]) == [
        *("mysql", "-p***", "-p***", "-p***")
    ]
    ordinary = ["ssh", "-p", "2222", "-p2222", "-path", "-prefix", "/opt", "--port", "1", "-print"]
    assert hide_in_command(ordinary) == ordinary


def test_a_command_for_a_shell_is_looked_through() -> None:
    command = ["sh", "-c", "mysql -pPASSWORD -e 'a  b' && train --auth hush --x=1 me:hush@proxy:80"]
    assert hide_in_command(command) == [
        *("sh", "-c", "mysql -p*** -e 'a  b' && train --auth *** --x=1 me:***@proxy:80")
    ]
