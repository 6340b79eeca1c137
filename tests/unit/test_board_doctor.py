"""The doctor under written trees: the right verdict for each fault, and a sentence whatever a machine says."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bc250studio import jobs, profiles
from bc250studio.board import doctor, presets
from bc250studio.board.doctor import Machine, examine, probes, share
from bc250studio.board.doctor.machine import Login, ServerFacts
from bc250studio.cli import doctor as cli
from bc250studio.errors import JobFailed
from tests.trees import Bc250, plain
from tests.trees.plain import put

GOOD_TORCH = {
    "version": "2.10.0a0", "hip": "7.2.4", "cuda": None, "available": True, "folder": "/opt/torch",
    "arch_list": ["gfx1013"], "arch": "gfx1013", "device": "AMD BC-250", "launched": True, "right": True,
    "mapped": ["/opt/torch/lib/librocblas.so.5", "/opt/torch/lib/libamdhip64.so.7"], "python": "3.12.3",
}  # fmt: skip
GOOD_PRODUCTS = {
    "device": "cuda", "name": "AMD BC-250",
    "products": {"cases": 18, "failures": [], "groups": {
        f"{dtype} {layout}": {"cases": 2, "failed": 0, "repeatable": True}
        for dtype in ("fp32", "fp16", "bf16") for layout in ("NN", "NT", "TN")}},
}  # fmt: skip
GOOD_SERVER = ServerFacts("/usr/bin/llama-server", "6123 (abc)", ("Vulkan0: AMD BC-250 (RADV GFX1013)",))


def a_login(user: str = "owner", groups: tuple[str, ...] = ("owner", "render", "video"), **variables: str) -> Login:
    return Login(user, frozenset(groups), True, 80, {"TERM": "xterm-256color", "LANG": "C.UTF-8", **variables})


def a_machine(root: Path, **more: Any) -> Machine:
    given: dict[str, Any] = {
        "login": a_login(),
        "library": "/home/owner/tuned",
        "ask_torch": lambda: dict(GOOD_TORCH),
        "ask_products": lambda: GOOD_PRODUCTS,
        "ask_server": lambda: GOOD_SERVER,
        "ask_jobs": list,
        "ask_free_bytes": lambda: 100 << 30,
        **more,
    }
    return Machine(root, **given)


def a_board(root: Path, **more: Any) -> Bc250:
    board = Bc250(root, **more).write()
    put(root, "/home/owner/tuned/TensileLibrary_gfx1013.dat", "")
    return board


def verdicts(machine: Machine) -> dict[str, str]:
    return {check.name: check.verdict for check in examine(machine)}


def line(machine: Machine, name: str) -> doctor.Check:
    (found,) = [check for check in examine(machine) if check.name == name]
    return found


def test_a_healthy_board_passes_every_line(tmp_path: Path) -> None:
    a_board(tmp_path)
    checks = examine(a_machine(tmp_path))
    assert {check.name: check.why for check in checks if check.verdict != "pass"} == {}
    assert len(checks) >= 25 and all(not check.fix for check in checks)


def test_a_plain_machine_warns_of_the_missing_gpu_and_fails_nothing(tmp_path: Path) -> None:
    machine = a_machine(
        plain(tmp_path),
        library=None,
        ask_torch=lambda: {"version": "2.13.0+cpu", "available": False, "launched": True, "right": True},
        ask_server=lambda: ServerFacts("/usr/bin/llama-server", "1"),
    )
    found = verdicts(machine)
    assert "fail" not in found.values()
    assert (found["gpu"], found["torch"], found["vulkan"], found["kernel"]) == ("warn", "pass", "pass", "skip")


@pytest.mark.parametrize(
    ("fault", "name", "verdict", "words"),
    [
        ({"kernel": "6.15.4-arch1"}, "kernel", "fail", "6.15.4"),
        ({"kernel": "6.17.9"}, "kernel", "fail", "break"),
        ({"kernel": "6.14.7"}, "kernel", "warn", "some owners"),
        ({"kernel": "6.17.11"}, "kernel", "warn", "6.18"),
        ({"kernel": "7.1.5-200.fc44"}, "kernel", "pass", "7.1.5"),
        ({"kernel": "rolling"}, "kernel", "warn", "unknown"),
        ({"parameters": {"sched_policy": 0}}, "flush", "fail", "13 of 18"),
        ({"parameters": {"bc250_flush_pasid_kiq": 1, "bc250_flush_by_runlist": 1}}, "flush", "fail", "wanted 0"),
        ({"parameters": {"bc250_flush_pasid_kiq": 0, "bc250_flush_by_runlist": 3}}, "flush", "pass", "=3"),
        ({"parameters": {"sched_policy": 2}}, "sched-policy", "fail", "is 2"),
        ({"compute_units": 24}, "units", "warn", "kernel update"),
        ({"compute_units": 24, "parameters": {}, "cmdline": ""}, "units", "pass", "as sold"),
        ({"compute_units": 38}, "units", "pass", "may not hold all 40"),
        ({"vram_mib": 12288, "gtt_mib": 2048}, "carve-out", "warn", "12.0 GiB"),
        ({"gtt_mib": 7680}, "gtt", "warn", "7.5 GiB"),
        ({"page_limit_mib": 7680}, "pages-limit", "warn", "asks for 14.0"),
        ({"page_limit_mib": 7680, "cmdline": ""}, "pages-limit", "warn", "below GTT"),
        ({"cmdline": "amdgpu.gttsize=14336"}, "pages-limit", "warn", "obsolete"),
        ({"page_limit_mib": None}, "pages-limit", "warn", "cannot be read"),
        ({"swap_mib": 0}, "swap", "warn", "no swap"),
        ({"available_mib": 900}, "memory", "warn", "0.9 of 15.0 GiB"),
        ({"running": ()}, "governor", "warn", "1500 MHz"),
        ({"running": ("cyan-skillfish-governor-smu", "oberon-governor")}, "governor", "fail", "two governors"),
        ({"governor": None}, "throttle", "warn", "85 °C is assumed"),
        ({"governor": "[temperature]\nthrottling = 105\n"}, "throttle", "warn", "105 °C only"),
        ({"governor": "[[safe-points]]\nfrequency = 1000\nvoltage = 718\n"}, "voltage", "warn", "718 mV"),
        ({"governor": "not toml ["}, "governor", "warn", "cannot be understood"),
        ({"clock_mhz": 55}, "sensor gpu_clock_mhz", "warn", "8 cores"),
        ({"temp_c": 0.0, "power_w": 434.0}, "temperature", "warn", "stands in"),
        ({"temp_c": 0.0, "power_w": 434.0}, "sensor gpu_power_w", "warn", "434 W"),
        ({"temp_c": 0.0, "tctl_c": None}, "temperature", "warn", "blind"),
        ({"temp_c": None, "tctl_c": None}, "temperature", "warn", "blind"),
        ({"temp_c": None}, "temperature", "warn", "k10temp Tctl (stands in"),
        ({"hwmon": 8, "nct": 2}, "temperature", "pass", "68.5 °C from gpu_metrics"),
        ({"power_w": None}, "sensors", "warn", "no reading of power"),
        ({"pwm": False}, "fans", "pass", "read only"),
        ({"nct": None}, "fans", "warn", "no fan sensor"),
        ({"mesa": "24.2.8"}, "mesa", "fail", "24.2.8"),
        ({"mesa": None}, "mesa", "warn", "not found"),
    ],
)
def test_each_fault_of_a_board_is_named(
    tmp_path: Path, fault: dict[str, Any], name: str, verdict: str, words: str
) -> None:
    root = tmp_path
    a_board(root, **fault)
    found = line(a_machine(root), name)
    assert (found.verdict, words in found.why) == (verdict, True), found
    if verdict == "fail":
        assert found.fix


@pytest.mark.parametrize(
    ("login", "name", "verdict", "words"),
    [
        (a_login(groups=("owner",)), "groups", "fail", "this login began before"),
        (a_login("guest", ("guest",)), "groups", "fail", "may not use /dev/kfd"),
        (a_login("root", ()), "groups", "pass", "root"),
        (a_login(HSA_OVERRIDE_GFX_VERSION="10.3.0"), "hsa-override", "fail", "10.3.0"),
        (a_login(HSA_ENABLE_SDMA="1"), "sdma", "warn", "never finish"),
        (a_login(HSA_ENABLE_SDMA="0"), "sdma", "pass", "set in this login"),
        (a_login(HIP_LAUNCH_BLOCKING="1"), "serialise", "warn", "HIP_LAUNCH_BLOCKING"),
        (a_login(RADV_DEBUG="nocompute"), "radv", "warn", "before 25.1"),
        (a_login(TERM="dumb"), "terminal", "warn", "dumb"),
        (a_login(LANG="C"), "terminal", "warn", "not UTF-8"),
        (a_login(TERM="linux"), "terminal", "warn", "16 colours"),
        (a_login(COLORTERM="truecolor"), "terminal", "pass", "true colour"),
    ],
)
def test_each_fault_of_a_login_is_named(tmp_path: Path, login: Login, name: str, verdict: str, words: str) -> None:
    a_board(tmp_path)
    found = line(a_machine(tmp_path, login=login), name)
    assert (found.verdict, words in found.why) == (verdict, True), found


@pytest.mark.parametrize(
    ("facts", "name", "verdict", "words"),
    [
        ({"error": "ModuleNotFoundError: No module named 'torch'"}, "torch", "fail", "No module named"),
        ({"arch_list": ["gfx1030", "gfx1100"]}, "torch", "fail", "no kernels for gfx1013 (it has gfx1030, gfx1100)"),
        ({"launched": False, "launch_error": "the process died of SIGABRT"}, "torch", "fail", "died of SIGABRT"),
        ({"right": False}, "torch", "fail", "wrong product"),
        ({"available": False}, "torch", "fail", "sees no GPU"),
        ({"available": False, "hip": None}, "torch", "warn", "train on the CPU"),
        ({"hip": None}, "rocblas", "skip", "no ROCm"),
        ({"mapped": []}, "rocblas", "warn", "no rocBLAS"),
        ({"mapped": ["/a/librocblas.so.5", "/b/librocblas.so.4"]}, "rocblas", "fail", "two rocBLAS"),
    ],
)
def test_each_fault_of_torch_is_named(
    tmp_path: Path, facts: dict[str, Any], name: str, verdict: str, words: str
) -> None:
    a_board(tmp_path)
    found = line(a_machine(tmp_path, ask_torch=lambda: {**GOOD_TORCH, **facts}), name)
    if "error" in facts:
        found = line(a_machine(tmp_path, ask_torch=lambda: dict(facts)), name)
    assert (found.verdict, words in found.why) == (verdict, True), found


def test_the_mapped_rocblas_must_have_real_files_of_this_chip(tmp_path: Path) -> None:
    a_board(tmp_path)
    machine = a_machine(tmp_path, library=None)
    assert line(machine, "rocblas").verdict == "fail"
    folder = tmp_path / "opt/torch/lib/rocblas/library"
    put(folder, "Kernels.so-000-gfx1010.hsaco", "")
    put(folder, "TensileLibrary_gfx1013.dat", "")
    assert line(machine, "rocblas").verdict == "pass"
    (folder / "Kernels.so-000-gfx1013.hsaco").symlink_to("Kernels.so-000-gfx1010.hsaco")
    assert "link to another chip" in line(machine, "rocblas").why
    assert line(machine, "tuned").verdict == "warn"


def test_wrong_products_are_named_by_type_and_layout(tmp_path: Path) -> None:
    a_board(tmp_path)
    record = json.loads(json.dumps(GOOD_PRODUCTS))
    record["products"]["groups"]["fp16 NT"]["failed"] = 1
    found = line(a_machine(tmp_path, ask_products=lambda: record), "products")
    assert found.verdict == "fail" and "fp16 NT" in found.why and found.fix
    record["products"]["groups"]["fp16 NT"] = {"failed": 0, "repeatable": False}
    assert line(a_machine(tmp_path, ask_products=lambda: record), "products").verdict == "warn"
    assert line(a_machine(tmp_path, ask_products=lambda: "no torch here"), "products").verdict == "skip"


@pytest.mark.parametrize(
    ("server", "verdict", "words"),
    [
        (ServerFacts(error="No llama-server on this machine"), "skip", "no llama-server"),
        (ServerFacts("/s", "1", ()), "fail", "silently serve on the CPU"),
        (ServerFacts("/s", "1", ("Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits)",)), "fail", "llvmpipe"),
        (ServerFacts("/s", "1", ("Vulkan0: AMD BC-250 (AMD open-source driver)",)), "warn", "not by RADV"),
    ],
)
def test_a_server_without_the_gpu_is_not_called_vulkan(
    tmp_path: Path, server: ServerFacts, verdict: str, words: str
) -> None:
    a_board(tmp_path)
    found = line(a_machine(tmp_path, ask_server=lambda: server), "vulkan")
    assert (found.verdict, words in found.why) == (verdict, True), found


def test_zram_other_programs_disk_and_a_second_driver(tmp_path: Path) -> None:
    a_board(tmp_path)
    put(tmp_path, "/proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 8388604 0 100")
    put(tmp_path, "/proc/900/cmdline", b"/usr/bin/ollama\0serve\0")
    put(tmp_path, "/usr/share/vulkan/icd.d/amd_icd64.json", "{}")
    (tmp_path / "sys/module/nct6683").mkdir(parents=True)
    (tmp_path / "sys/module/nct6687").mkdir()
    found = {check.name: check for check in examine(a_machine(tmp_path, ask_free_bytes=lambda: 100 << 20))}
    assert "zram" in found["swap"].why and found["swap"].verdict == "warn"
    assert "ollama" in found["memory"].why and found["memory"].verdict == "warn"
    assert found["disk"].verdict == "fail"
    assert found["fans"].verdict == "fail" and "both loaded" in found["fans"].why
    assert found["radv"].verdict == "warn" and "amdvlk" in found["radv"].why


def test_a_login_whose_processes_end_at_logout(tmp_path: Path) -> None:
    a_board(tmp_path)
    put(tmp_path, "/etc/systemd/logind.conf", "[Login]\n#KillUserProcesses=no\nKillUserProcesses=yes")
    found = line(a_machine(tmp_path), "logout")
    assert found.verdict == "fail" and found.fix == "sudo loginctl enable-linger owner"
    put(tmp_path, "/etc/systemd/logind.conf.d/50-no.conf", "[Login]\nKillUserProcesses=no")
    assert line(a_machine(tmp_path), "logout").verdict == "pass"
    put(tmp_path, "/etc/systemd/logind.conf.d/60-yes.conf", "KillUserProcesses = true")
    put(tmp_path, "/var/lib/systemd/linger/owner", "")
    assert "lingering" in line(a_machine(tmp_path), "logout").why


def test_a_run_that_hangs_in_the_kernel_is_named_with_the_advice_to_reboot(tmp_path: Path) -> None:
    a_board(tmp_path)
    job = jobs.JobFolder.create("train", profiles.from_text("", "test"))
    hung = jobs.Standing(job, "stuck", "training", 312.0, job.state())
    found = line(a_machine(tmp_path, ask_jobs=lambda: [hung]), "stuck")
    assert found.verdict == "fail" and "D state" in found.why and "312 s" in found.why
    assert "reboot" in found.fix and job.name in found.fix


def test_the_clock_is_a_line_when_asked_for(tmp_path: Path) -> None:
    a_board(tmp_path, clock_mhz=55)
    measured = {"clock_mhz": 1998.2, "lowest_mhz": 1990.0, "highest_mhz": 2001.0}
    found = line(a_machine(tmp_path, ask_clock=lambda: measured), "clock")
    assert found.verdict == "pass" and "1998 MHz" in found.why and "driver says 55" in found.why

    def refuse() -> dict[str, Any]:
        raise JobFailed("The shader clock needs libamdhip64.")

    assert line(a_machine(tmp_path, ask_clock=refuse), "clock").verdict == "skip"


def test_a_check_that_breaks_is_a_line_and_the_others_still_answer(tmp_path: Path) -> None:
    a_board(tmp_path)

    def broken() -> int:
        raise ZeroDivisionError("a\x1b[31m surprise")

    found = examine(a_machine(tmp_path, ask_free_bytes=broken))
    (odd,) = [check for check in found if "broke with ZeroDivisionError" in check.why]
    assert odd.verdict == "warn" and "\x1b" not in odd.why
    assert {check.group for check in found} >= {"Device", "Memory", "Heat", "Serving", "Session"}


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_of_any_file_breaks_a_check(tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / "tree"
    if not root.exists():
        a_board(root)
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    broken = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=5, unique=True))
    before = {path: path.read_bytes() for path in broken}
    try:
        for path in broken:
            path.write_bytes(data.draw(st.one_of(st.binary(max_size=200), st.text(max_size=80).map(str.encode))))
        for check in examine(a_machine(root)):
            assert "broke with" not in check.why, check
            assert (
                check.verdict in ("pass", "warn", "fail", "skip") and check.why and "\x1b" not in check.why + check.fix
            )
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def test_the_page_fits_80_columns_and_folds_what_does_not_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    checks = examine(a_machine(plain(tmp_path), library=None))
    text = cli.page(checks, doctor.count(checks))
    long = [row for row in text.splitlines() if len(row) > 80 and " " in row.strip()]
    assert not long
    assert "kernel, flush, sched-policy, units: only on a BC-250" in text
    assert text.splitlines()[-1] == ", ".join(f"{n} {v}" for v, n in doctor.count(checks).items() if n)
    assert len(cli.page(checks, doctor.count(checks), everything=True).splitlines()) > len(text.splitlines())


def test_share_carries_numbers_and_no_name_path_or_serial(tmp_path: Path) -> None:
    board = a_board(tmp_path)
    put(board.device, "unique_id", "5ec2e7bada55e5")
    put(tmp_path, "/etc/machine-id", "0123456789abcdef0123456789abcdef")
    record = {
        "schema": 1, "kind": "train", "name": "20261129-owners-secret-model", "summary": "secret at /home/owner",
        "machine": {"system": "Linux-6.18-host42", "processor": "AMD BC-250", "python": "3.12"},
        "regime": {"model": "/home/owner/models/secret", "device": "AMD BC-250", "dtype": "fp16", "tokens": "2048",
                   "data": "diary.jsonl", "note": "for Alice", "name": "/home/owner"},
        "results": {"ratio": 4.2, "losses_equal": True, "host": "host42",
                    "variants": [{"name": "2048 graph=off", "rates": {"real_tokens_per_s": 801.5}}]},
    }  # fmt: skip
    machine = a_machine(tmp_path)
    found = share.document(machine, examine(machine), [record])
    text = json.dumps(found)
    for secret in (
        "owner",
        "secret",
        "host42",
        "diary",
        "Alice",
        "5ec2e7",
        "0123456789abcdef",
        "/home",
        "/usr",
        "/etc",
    ):
        assert secret not in text, secret
    assert found["benches"][0]["results"]["variants"][0] == {
        "name": "2048 graph=off",
        "rates": {"real_tokens_per_s": 801.5},
    }
    assert found["benches"][0]["regime"]["device"] == "AMD BC-250"
    assert found["board"]["compute_units"] == 40
    assert found["board"]["governors"][0]["lowest_voltage_mv"] == 800
    assert found["software"]["linux"] == "6.18.9" and found["software"]["mesa"] == "25.3.1"
    assert found["checks"]["flush"] == "pass" and found["readings"]["gpu_temp_c"]["value"] == 68.5


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=12), inner, max_size=4)),
)


@settings(max_examples=40, deadline=None)
@given(JSON, st.sampled_from(["/home/x", "x@y.z", "C:\\x", "~/x", "http://a", "a" * 61, "\x1b[2J", "ünï", "'; x"]))
def test_no_text_outside_the_list_survives_sharing(value: Any, secret: str) -> None:
    kept = json.dumps(share.numbers({"a": value, "regime": {"device": secret, "model": "plain", secret: 1}}))
    assert json.dumps(secret)[1:-1] not in kept and "plain" not in kept


def test_the_probe_of_a_real_python(tmp_path: Path) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\necho boom >&2\nexit 3\n")
    silent.chmod(0o755)
    assert probes.torch_facts(str(silent), {}) == {"error": "boom"}
    assert "cannot be started" in probes.torch_facts(str(tmp_path / "none"), {})["error"]
    dying = tmp_path / "dying"
    dying.write_text('#!/bin/sh\necho \'{"version": "2.9", "available": true}\'\nkill -ABRT $$\n')
    dying.chmod(0o755)
    facts = probes.torch_facts(str(dying), {})
    assert facts["launched"] is False and "SIGABRT" in facts["launch_error"]
    odd = tmp_path / "odd"
    odd.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        print("[1]\\n{{broken\\n" + '{{"error": "x"}}')
    """)
    )
    odd.chmod(0o755)
    assert probes.torch_facts(str(odd), {}) == {"error": "x"}
    assert "could not be computed: boom" in probes.products(str(silent), {})


def test_the_doctor_of_this_machine_as_its_user_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    from bc250studio.cli.main import main

    code = main(["doctor", "--quick", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (1 if found["counts"]["fail"] else 0)
    assert {"name", "group", "verdict", "why", "fix"} == set(found["checks"][0])
    assert not [check for check in found["checks"] if "broke with" in check["why"]]
    main(["doctor", "--quick", "--share"])
    assert json.loads(capsys.readouterr().out)["schema"] == 1
    assert main(["doctor", "--put-back"]) == 0
    assert "Nothing was left changed" in capsys.readouterr().out


def test_the_presets_table_of_the_page_is_the_generated_one() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/board.md"
    assert presets.with_table(page.read_text("utf-8")) == page.read_text("utf-8"), (
        "write it anew: python -m bc250studio.board.presets --write docs/board.md"
    )
