"""`braid quickstart`: create a tiny model and train it with RL on a laptop, in minutes.

Each stage is an ordinary `braid` command, which is printed.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from braidrl.configs.core.errors import ConfigError
from braidrl.entrypoints import rl
from braidrl.launch.contract import Process
from braidrl.launch.local import LocalLauncher
from braidrl.launch.supervisor import ProcessFailed, Supervisor
from braidrl.launch.wiring import POLL_SECONDS
from braidrl.utils.process import available_cores, environment
from braidrl.utils.run_folder import RunFolder

RECIPE = "grpo"
SFT_STEPS = 300
HELDOUT = "heldout"
"""Name of the evaluation source in the recipe."""


def main(args: list[str]) -> int:
    """Run the quickstart. Exit codes are those of `braid rl`."""
    parser = argparse.ArgumentParser(prog="braid quickstart", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("outputs/quickstart"),
        help="folder for all outputs (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights, tasks and sampling (default: %(default)s)"
    )
    parser.add_argument("--clean", action="store_true", help="remove the contents of the output folder first")
    options = parser.parse_args(args)
    folder: Path = options.output_dir
    if options.clean:
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            "--output-dir", f"{folder} is not empty; remove it with --clean or choose another folder"
        )
    return Quickstart(folder, options.seed, recipe_folder(), Console()).run()


def recipe_folder() -> Path:
    """Return the folder of the recipe: inside the installed package, or in the repository for an editable install."""
    package = Path(__file__).parents[1]
    candidates = [package / "examples" / RECIPE, package.parents[1] / "examples" / RECIPE]
    return next(path for path in candidates if path.is_dir())


class Quickstart:
    """Three stages: model creation, supervised warm-up, and RL.

    Args:
        folder: folder for all outputs.
        seed: seed of weights, tasks and sampling.
        recipe: folder with `sft.toml` and `rl.toml`.
        console: output.
    """

    def __init__(self, folder: Path, seed: int, recipe: Path, console: Console) -> None:
        self.folder = folder
        self.seed = str(seed)
        self.recipe = recipe
        self.console = console
        self.model = folder / "model"
        self.sft = RunFolder(folder / "sft")
        self.rl = RunFolder(folder / "rl")

    def run(self) -> int:
        """Run all stages, print the results, and return the exit code."""
        started = time.monotonic()
        try:
            self._run_stage(
                "1/3",
                "create a tiny model (no download)",
                ["tiny-model", str(self.model), "--seed", self.seed],
            )
            self._run_stage(
                "2/3",
                "fine-tune it on demonstrations, most of which only copy the text",
                self._sft_args(),
                SFT_STEPS,
            )
        except ProcessFailed as failure:
            print(f"braid quickstart: error: {failure}", file=sys.stderr)
            return 1
        args = self._rl_args()
        self._announce("3/3", "train it with RL: only the reversed text is rewarded", args)
        code = rl.main(args[1:])
        if code == 0:
            self._print_results()
            self.console.print(f"\ntotal time: {time.monotonic() - started:.0f} s")
        return code

    def _sft_args(self) -> list[str]:
        paths = ["--model.path", str(self.model), "--output-dir", str(self.sft.root)]
        return [
            "sft",
            "@",
            str(self.recipe / "sft.toml"),
            *paths,
            "--max-steps",
            str(SFT_STEPS),
            "--seed",
            self.seed,
        ]

    def _rl_args(self) -> list[str]:
        paths = ["--model.path", str(self.sft.weights(SFT_STEPS)), "--output-dir", str(self.rl.root)]
        return ["rl", "@", str(self.recipe / "rl.toml"), *paths, "--seed", self.seed]

    def _run_stage(self, number: str, what: str, args: list[str], steps: int = 0) -> None:
        """Run one command to completion. Its log is written to the output folder."""
        from braidrl.report.progress import Progress

        self._announce(number, what, args)
        log = self.folder / f"{args[0]}.log"
        with Supervisor(LocalLauncher(stop_timeout=10.0)) as supervisor:
            supervisor.start(Process(args[0], tuple(args), log, environment(available_cores())))
            with Progress(self.sft, steps, ("trainer",), self.console, every=max(1, steps // 10)) as progress:
                while not supervisor.finished():
                    supervisor.check()
                    progress.update()
                    time.sleep(POLL_SECONDS)
                progress.update()

    def _announce(self, number: str, what: str, args: list[str]) -> None:
        self.console.print(f"\n[bold]{number} {what}[/bold]")
        self.console.print(f"$ braid {' '.join(args)}", style="dim", highlight=False, soft_wrap=True)

    def _print_results(self) -> None:
        from braidrl.report import plot, rewards

        steps, curve = rewards.training_curve(self.rl)
        heldout = rewards.heldout_rewards(self.rl, HELDOUT)
        before, after = heldout[0], heldout[-1]
        picture = self.folder / "reward.png"
        plot.save_reward_plot(
            picture, steps, curve, [(each.version, each.mean, each.ci95) for each in heldout]
        )
        self.console.print("\n" + plot.terminal_plot(steps, curve), highlight=False, markup=False)
        self.console.print(
            f"held-out reward: {before.mean:.3f} ± {before.ci95:.3f} before, {after.mean:.3f} ± {after.ci95:.3f} after"
            f" ({after.mean - before.mean:+.3f}; 95% intervals)",
            soft_wrap=True,
            highlight=False,
        )
        self._show_rollouts(before.version, after.version)
        self.console.print(f"\nplot of the curve: {picture}", highlight=False, soft_wrap=True)
        self.console.print(
            NEXT.format(run=self.rl.root, recipe=self.recipe, model=self.sft.weights(SFT_STEPS)),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def _show_rollouts(self, before: int, after: int) -> None:
        """Print the rollouts of both policies on the held-out task whose reward increased most."""
        from braidrl.report import rewards

        first, last = rewards.eval_episodes(self.rl, before), rewards.eval_episodes(self.rl, after)
        key = max(
            first.keys() & last.keys(), key=lambda key: rewards.reward(last[key]) - rewards.reward(first[key])
        )
        self.console.print("\nheld-out task with the largest gain:")
        for label, record in (("before", first[key]), ("after", last[key])):
            messages = "  ".join(f"{role}: {text!r}" for role, text in rewards.conversation(record))
            self.console.print(
                f"  {label:<7}{messages}  reward {rewards.reward(record):.2f}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


NEXT = """
next steps:
  tokens of every rollout       braid report {run}
  all metrics                   tail -n 1 {run}/metrics/trainer.jsonl
  another learning rate         braid rl @ {recipe}/rl.toml --model.path {model} \\
                                  --output_dir outputs/try --trainer.optim.lr 1e-4
  strictly on-policy            ... --orchestrator.max_off_policy_steps 0
  a 135M-parameter model        see {recipe}/README.md"""
