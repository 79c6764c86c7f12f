"""What the package shows to the world, and what it costs to import it."""

import subprocess
import sys
import types
from importlib import resources

import capri
from waiting import PATIENCE

# The names that other work relies on. A change here is a change for every user.
PUBLIC = {
    "Allowance",
    "AttackResult",
    "AuditResult",
    "AwayError",
    "Boolean",
    "Budget",
    "BudgetError",
    "BundleError",
    "Capri",
    "CapriError",
    "Categorical",
    "Certificate",
    "Client",
    "ConfigurationError",
    "ContextPool",
    "ContextSampler",
    "DataError",
    "Decision",
    "Decisions",
    "Declaration",
    "DurableClient",
    "EpochPlan",
    "EpochRecord",
    "Epochs",
    "ErrorWidth",
    "ExpectedEpoch",
    "ExpectedRegret",
    "Explanation",
    "FixedActions",
    "Forecast",
    "HorizonError",
    "InDoubtError",
    "KernelCost",
    "KernelWarning",
    "Ledger",
    "Limits",
    "LocalCapri",
    "LocalClient",
    "MissingExtraError",
    "Mode",
    "Notice",
    "Numeric",
    "Operation",
    "OrganisationLedger",
    "PaperOptions",
    "PracticalOptions",
    "Prior",
    "PrivacyLeakWarning",
    "PrivacyModel",
    "PrivateKernelClassifier",
    "PrivateKernelQuantiles",
    "PrivateKernelRidge",
    "PublicScaler",
    "Promise",
    "ReleaseEvent",
    "ReportPlan",
    "ReportStatus",
    "RewardIgnoredWarning",
    "RewardStatus",
    "Schema",
    "ServiceError",
    "ShadowRecord",
    "ShapeError",
    "Shuffle",
    "Shuffler",
    "SimulationResult",
    "Spending",
    "StorageError",
    "VaryingActions",
    "VisitStatus",
    "environments",
    "kernels",
    "simulate",
}


def test_public_names_are_exactly_these() -> None:
    assert set(capri.__all__) == PUBLIC
    assert list(capri.__all__) == sorted(capri.__all__)


def test_every_public_name_resolves_and_is_documented() -> None:
    for name in capri.__all__:
        thing = getattr(capri, name)
        assert thing.__doc__, name


def test_nothing_public_is_missing_from_the_list() -> None:
    """A class or function imported into the package must be listed, or not imported."""
    visible = {
        name
        for name, thing in vars(capri).items()
        if not name.startswith("_") and not isinstance(thing, types.ModuleType)
    }
    assert visible <= PUBLIC


def test_star_import_gives_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from capri import *", namespace)
    assert set(namespace) - {"__builtins__"} == PUBLIC


def test_every_error_has_the_one_base() -> None:
    from capri import errors

    for name, thing in vars(errors).items():
        if isinstance(thing, type) and issubclass(thing, Exception):
            if issubclass(thing, Warning):
                assert issubclass(thing, UserWarning), name
            else:
                assert issubclass(thing, capri.CapriError), name


def test_names_of_the_issue_work_as_written() -> None:
    policy = capri.Capri(
        kernel=capri.kernels.Matern(nu=2.5, lengthscale=0.3),
        actions=[[0.0], [1.0]],
        contexts=capri.ContextPool([[0.0], [0.5]]),
        reward_bound=1.0,
        budget=capri.Budget(epsilon=1.0, delta=1e-5),
        horizon=100_000,
        preset="paper",
        simulation_seed=None,
    )
    decision = policy.act([0.5])
    for name in ("id", "action_index", "action", "propensity", "epoch"):
        assert hasattr(decision, name)
    fields = capri.EpochRecord.__dataclass_fields__
    assert set(fields) >= {
        "epoch",
        "length",
        "rank",
        "tau",
        "sigma_max",
        "noise_scale",
        "width",
        "active_share",
        "seconds",
    }


def test_type_marker_is_shipped() -> None:
    for package in ("capri", "capri_lab"):
        assert resources.files(package).joinpath("py.typed").is_file()


def test_version_is_the_distributions() -> None:
    import tomllib
    from pathlib import Path

    root = Path(__file__).parent.parent
    product, laboratory = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in (root, root / "lab")
    )
    assert product["version"] == laboratory["version"] == capri.__version__
    assert f"{product['name']}=={capri.__version__}" in laboratory["dependencies"]


def test_import_is_light() -> None:
    """Plots, shells, accountants and samplers load when they are used."""
    heavy = ("matplotlib", "opendp", "dp_accounting", "sklearn", "typer", "rich", "pandas", "dask")
    heavy += ("starlette", "uvicorn", "msgspec", "http.client")
    code = f"import sys, capri; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.strip() == "[]"


def test_import_works_without_the_unix_only_module() -> None:
    """``resource`` does not exist on Windows; measuring memory is no reason to fail there."""
    code = "import sys; sys.modules['resource'] = None; import capri; print(capri.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr.splitlines()[-1]
