"""Three devices with different labels and different models improve each other, and never send a weight.

A camera tells 3, 5 and 8 apart, a phone 5, 8 and 9, a watch 8, 9 and 3. Every round each sees a few new digits of its
own, trains its own kind of model, and sends its scores on a public set. What comes back is everybody's opinion on its
labels; with distillation its model learns from it, and is better on pictures that nobody has trained on.

Scores add up over rounds, so a device would get better without the others too: each is also run alone.

python examples/three_devices.py
"""

from pathlib import Path

import turnout as to
from turnout.running.folder import new_folder

DEVICES = {
    "camera": (("3", "5", "8"), to.models.CNN((8, 16), kernel=3, padding=1)),
    "phone": (("5", "8", "9"), to.models.MLP(32)),
    "watch": (("8", "9", "3"), to.models.Logistic()),
}


def experiment(alone: str | None = None, seed: int = 0) -> to.Experiment:
    """All three, or one of them after the others have left."""
    labels, models = zip(*DEVICES.values(), strict=True)
    arriving = to.data.Arriving(to.data.Digits(), labels, per_label=4, public=60, names=tuple(DEVICES))
    gone = [to.Leave(device, 0) for device in DEVICES if alone not in (None, device)]
    return to.Experiment(
        world=to.World(arriving, events=gone),
        algorithm=to.scores.Scores(
            local=to.Local(to.Adam(lr=0.01, beta1=0.9, beta2=0.999), epochs=5, batch_size=4),
            models=dict(zip(DEVICES, models, strict=True)),
            early=None,  # a dozen samples leave none to judge by
            distil=to.scores.Distil(epochs=10, batch_size=20),
        ),
        rounds=4,
        seed=seed,
        runtime=to.runtime.InProcess(device="cpu", threads=1),
    )


def accuracies(run: to.Run, device: str) -> list[float]:
    """Means over the rounds: of its model, of the scores it gets back, and of its model after learning them."""
    with run.records() as records:
        seen = records.clients()
    own = seen["client"] == list(DEVICES).index(device)
    columns = ("local_accuracy", "consensus_accuracy", "distilled_accuracy")
    return [float(seen[name][own].mean()) for name in columns]


def compare(folder: Path, seeds: int = 1) -> dict[str, tuple[list[float], list[float]]]:
    """Each device with the others, and alone; means over seeds."""
    found: dict[str, tuple[list[float], list[float]]] = {device: ([0.0] * 3, [0.0] * 3) for device in DEVICES}
    for seed in range(seeds):
        runs = {w: to.run(experiment(w, seed), folder / f"{w or 'all'}-{seed}", quiet=True) for w in (None, *DEVICES)}
        for device, totals in found.items():
            for total, run in zip(totals, (runs[None], runs[device]), strict=True):
                for i, value in enumerate(accuracies(run, device)):
                    total[i] += value / seeds
    return found


if __name__ == "__main__":
    for device, (together, alone) in compare(new_folder("three-devices")).items():
        print(f"{device}: its model of a round {together[0]:.1%}")
        print(f"  scores it gets back {together[1]:.1%}, alone {alone[1]:.1%}")
        print(f"  its model after learning them {together[2]:.1%}, alone {alone[2]:.1%}")
