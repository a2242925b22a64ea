"""Secrets: which settings are some, that no sentence repeats them, and that a folder gives them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import UserError
from forge_env.utils.secret_values import FILE, HIDDEN, check_present, keep, masked, masked_text, with_secrets

BESIDE = Path(__file__).parent
SECRETS: dict[str, Any] = json.loads((BESIDE / "secrets.json").read_text(encoding="utf-8"))
NO_SECRETS: dict[str, Any] = json.loads((BESIDE / "no_secrets.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_masked_by_its_name_or_its_form(name: str) -> None:
    shown = repr(masked({"options": {name: SECRETS[name]}}))
    assert HIDDEN in shown and "LEAKED" not in shown and "7777" not in shown
    assert "LEAKED" not in masked_text(f"the option {name} is {SECRETS[name]!r}")


def test_other_settings_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_VARIABLE", "x")
    assert masked(NO_SECRETS) == NO_SECRETS


def test_a_sentence_about_secrets_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_env.utils.secret_values._secrets", set())
    sentence = (
        "connect to http://127.0.0.1:80/TOKEN, or send the header Authorization: Bearer TOKEN, once LEAKED-9 is set"
    )
    assert masked_text(sentence) == sentence
    assert "PASS" not in masked_text("https://me:PASS-9@host") and masked_text("PASS-9") == "PASS-9"
    masked({"api_key": "LEAKED-9", "token": "secret", "password": "set"})
    assert masked_text(sentence) == sentence.replace("LEAKED-9", HIDDEN)


def test_a_folder_gives_its_secrets_back(tmp_path: Path) -> None:
    settings = {"env": {"options": SECRETS}}
    keep(tmp_path, settings)
    assert with_secrets(masked(settings), tmp_path) == settings
    assert with_secrets({"env": {"options": {"api_key": "another"}}}, tmp_path) == {
        "env": {"options": {"api_key": "another"}}
    }
    keep(tmp_path, {"env": {"empty": ()}})
    assert not (tmp_path / FILE).exists()
    with pytest.raises(
        UserError, match=r"hold.* env\.options\.api_key, env.*; give them again, --env\.options\.api_key X"
    ):
        check_present(with_secrets(masked(settings), tmp_path), "--{} X")
    (tmp_path / FILE).write_text("[1")
    with pytest.raises(UserError, match=f"{FILE} cannot be read"):
        with_secrets(masked(settings), tmp_path)
