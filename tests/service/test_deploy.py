"""The files of examples/deploy, run as they are on folders of our own; keys that are rotated."""

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from capri.cli import app
from capri.errors import StorageError
from capri.service.server import Start, open_policy, serve
from capri.service.settings import load_settings
from service_process import POLICY, SOMEBODY, Running, add_key, service
from waiting import eventually

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
PROGRAM = "/opt/capri/bin/capri"


def here(command: str, folder: Path) -> str:
    """A command of the unit with the folders of a test for those of a machine."""
    for place in ("/etc/capri", "/mnt/capri-guard", "/var/lib/capri"):
        command = re.sub(rf"{place}(?=[/ ])", str(folder / Path(place).name), command)
    return command.replace(PROGRAM, f"{sys.executable} -m capri")


def test_the_unit_serves_and_looks_over(folder: Path) -> None:
    for name in ("capri-guard", "capri"):
        (folder / name).mkdir()
    (folder / "capri" / "policy.toml").write_text(
        POLICY.format(top="", reward="", more="", first=30)
    )
    unit = dict(
        line.split("=", 1)
        for line in (DEPLOY / "capri.service").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    # The rollback guard is where a restore of the store does not reach, and is waited for.
    (rollback_guard,) = set(re.findall(r"--rollback-guard (\S+?)/guard\.json", str(unit)))
    assert unit["RequiresMountsFor"] == rollback_guard
    assert Path(unit["WorkingDirectory"]).parts[1] != Path(rollback_guard).parts[1]
    sealed = {"CAPRI_STORE_KEY": secrets.token_hex(32)}

    def looked_over() -> str:
        command = shlex.split(here(unit["ExecStartPre"], folder))
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | sealed
        )
        return done.stdout

    assert looked_over() == ""  # there is nothing yet
    started = shlex.split(here(unit["ExecStart"], folder))
    assert started[3:5] == ["serve", str(folder / "capri" / "policy.toml")]
    shop = Running(folder / "capri", tuple(started[5:]), sealed)
    shop.key = add_key(folder / "capri" / "policy.keys", "tests", ["admin"])
    shop.start()
    shop.post("/v1/decisions:batch", [{"context": SOMEBODY}] * 20)
    shop.post("/v1/admin/close", {"early": True})
    assert shop.get("/v1/certificate")["digests"]["store"]["guarded"] is True
    shop.stop()
    assert re.search(r"rollback_guard +good +file", looked_over())


def test_the_image_listens_where_it_says() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    command = json.loads(re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)[1])  # type: ignore[index]
    assert command[-2:] == ["--host", "0.0.0.0"]
    told = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    assert f"default: {re.search(r'EXPOSE (.*)', text)[1]}" in told  # type: ignore[index]


def test_another_policy_on_the_store_is_refused_by_name(folder: Path) -> None:
    file = folder / "policy.toml"
    text = POLICY.format(top="", reward="", more="", first=30)
    file.write_text(text)
    open_policy(load_settings(file), None).close()
    file.write_text(text.replace("epsilon = 2.0", "epsilon = 3.0"))
    with pytest.raises(StorageError, match="budget"):
        serve(Start(file, None, None, True), host="127.0.0.1", port=0, workers=1)
    file.write_text(text + "[users]\ncontributions = 2\n")
    with pytest.raises(StorageError, match="limit"):
        serve(Start(file, None, None, True), host="127.0.0.1", port=0, workers=1)


def test_keys_of_store_and_ids_are_rotated(folder: Path) -> None:
    """A worker with the old store key serves nobody any more; ids of before are understood."""
    old, new = secrets.token_hex(32), secrets.token_hex(32)
    (folder / "new").write_text(new)
    url = f"sqlite:///{folder / 'policy.db'}"

    def command(*words: str) -> None:
        done = CliRunner().invoke(app, ["store", *words], env={"CAPRI_STORE_KEY": old})
        assert done.exit_code == 0, done.output

    with service(folder, environment={"CAPRI_STORE_KEY": old}) as shop:
        made = shop.post("/v1/decisions", {"context": SOMEBODY, "key": "before"})
        asked = {"context": SOMEBODY, "key": "before"}
        command("rotate-ids", url)
        # The number of the decision stays, and what nobody can make up is another.
        eventually(lambda: shop.post("/v1/decisions", asked)["id"] != made["id"])
        assert shop.post("/v1/decisions", asked)["id"][:8] == made["id"][:8]
        assert shop.post("/v1/rewards", {"id": made["id"], "reward": 1}) == {"status": "accepted"}
        command("rotate-key", url, "--new-key-file", str(folder / "new"))
        status, said = shop.ask("POST", "/v1/decisions", {"context": SOMEBODY, "key": "after"})
        assert status == 503, said
        shop.stop()
        shop.environment["CAPRI_STORE_KEY"] = new
        shop.start()
        again = shop.post("/v1/decisions", {"context": SOMEBODY, "key": "before"})
        assert (again["action"], again["epoch"]) == (made["action"], made["epoch"])
        assert shop.post("/v1/rewards", {"id": made["id"], "reward": 1}) == {"status": "duplicate"}
        assert "before" not in "".join(shop.said)


def test_the_first_mode_is_taken_beside_a_rollback_guard_that_is_never_begun_in_silence(
    folder: Path,
) -> None:
    file, rollback_guard = folder / "policy.toml", folder / "guard.json"
    top = 'mode = "shadow"\nrollback_guard = "guard.json"'
    file.write_text(POLICY.format(top=top, reward="", more="", first=30))
    settings = load_settings(file)
    with open_policy(settings, None) as policy:
        settings.begin(policy)
        assert [each.kind for each in policy.operations] == ["rollback_guard", "mode"]
    rollback_guard.unlink()
    with pytest.raises(StorageError, match="knows nothing"):
        serve(Start(file, None, None, True), host="127.0.0.1", port=0, workers=1)
    assert not rollback_guard.exists()
    open_policy(settings, None, new_rollback_guard=True).close()
    open_policy(settings, None).close()


def linter(tool: str) -> str:
    """A program of this machine, or one that tools/install_linters.sh has put beside Python."""
    beside = str(Path(sys.prefix) / "linters" / "usr" / "bin")
    found = shutil.which(tool, path=os.pathsep.join([os.environ["PATH"], beside]))
    if found is None:
        why = f"no {tool}: run sh tools/install_linters.sh {sys.prefix}/linters"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return found


def test_the_unit_is_hardened() -> None:
    tool = linter("systemd-analyze")
    command = [tool, "security", "--offline=true", "--no-pager", str(DEPLOY / "capri.service")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Overall exposure level for capri.service: ([0-9.]+)", said)
    assert found is not None
    assert float(found[1]) < 3


def checked(tool: str, words: tuple[str, ...], file: Path) -> bool:
    """Whether a linter takes a file."""
    done = subprocess.run([linter(tool), *words, str(file)], capture_output=True, check=False)
    return done.returncode == 0


def composed(file: Path) -> bool:
    """The same of Compose, which is a program of its own or a part of Docker's."""
    command = ["docker", "compose"]
    if subprocess.run([*command, "version"], capture_output=True, check=False).returncode:
        command = [linter("docker-compose")]
    command += ["--file", str(file), "config", "--quiet"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


# Who takes which file, and a word without which nobody may.
LINTERS = {
    "alerts.yml": (partial(checked, "promtool", ("check", "rules")), "expr:"),
    "Caddyfile": (
        partial(checked, "caddy", ("validate", "--adapter", "caddyfile", "--config")),
        "reverse_proxy",
    ),
    "compose.yml": (composed, "healthcheck:"),
}


@pytest.mark.parametrize("name", LINTERS)
def test_examples_pass_the_linters_of_their_makers(name: str, tmp_path: Path) -> None:
    takes, word = LINTERS[name]
    assert takes(DEPLOY / name)
    broken = tmp_path / name
    broken.write_text((DEPLOY / name).read_text().replace(word, word.replace("e", "a", 1), 1))
    assert not takes(broken)


def test_the_example_of_kubernetes_is_what_kubernetes_takes() -> None:
    linter = pytest.importorskip("kubernetes_validate")
    kinds = []
    for document in yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text()):
        linter.validate(document, linter.latest_version(), strict=True)
        kinds.append(document["kind"])
    assert kinds == ["Deployment", "Service", "PodDisruptionBudget"]
    document["spec"]["maxUnavailble"] = 1  # misspelled
    with pytest.raises(linter.ValidationError):
        linter.validate(document, linter.latest_version(), strict=True)


def test_examples_of_containers_hold_together() -> None:
    """Options and variables that there are, ports and names that fit each other, and no secret."""
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    deployment, exposed, budget = yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text())
    ours = compose["services"]["capri"]
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    known = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    for words in (ours["command"], container["args"]):
        assert words[0] == "serve"
        assert all(word in known for word in words if word.startswith("--"))
    names = {*ours["environment"], *(each["name"] for each in container["env"])}
    variables = {"CAPRI_STORE", "CAPRI_STORE_KEY", "CAPRI_ROLLBACK_GUARD"}
    assert {name.removesuffix("_FILE") for name in names} == variables
    assert set(ours["secrets"]) <= set(compose["secrets"])
    for service_of in compose["services"].values():
        for mount in service_of.get("volumes", []):
            place = mount.split(":")[0]
            assert place.startswith("./") or place in compose["volumes"]
    labels = pod["metadata"]["labels"]
    for selector in (deployment["spec"]["selector"]["matchLabels"], exposed["spec"]["selector"],
                     budget["spec"]["selector"]["matchLabels"]):  # fmt: skip
        assert selector == labels
    (port,) = container["ports"]
    assert exposed["spec"]["ports"][0]["targetPort"] == port["name"]
    assert "EXPOSE 8017" in (DEPLOY / "Dockerfile").read_text()
    mounted = {each["name"] for each in pod["spec"]["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == mounted
    probes = [container[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe")]
    assert probes == ["/readyz", "/healthz"]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 30
    assert "reverse_proxy 127.0.0.1:8017" in (DEPLOY / "Caddyfile").read_text()


def test_secrets_come_from_files(folder: Path) -> None:
    kept = folder / "kept"
    kept.mkdir()
    key = secrets.token_hex(32)
    (kept / "store").write_text(f"sqlite:///{folder}/elsewhere.db\n")
    (kept / "key").write_text(key + "\n")
    files = {"CAPRI_STORE_FILE": str(kept / "store"), "CAPRI_STORE_KEY_FILE": str(kept / "key")}
    with service(folder, environment=files) as shop:
        shop.post("/v1/decisions", {"context": SOMEBODY})
    assert (folder / "elsewhere.db").exists()
    again = {"CAPRI_STORE": f"sqlite:///{folder}/elsewhere.db", "CAPRI_STORE_KEY": key}
    with service(folder, environment=again) as shop:
        assert shop.decided() == 1
