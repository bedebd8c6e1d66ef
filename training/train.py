"""Train the nano Clef, over several leases of one GPU if need be (each continues the checkpoint of the last).

    python -m training.train --tokenizer T --out DIR [--resume DIR] --seconds S [--decay-from A --decay-to B]

Constant learning rate after a short warm-up, then linearly down between two steps; weights are averaged throughout and
the average is what is evaluated and released. Optimizer state is not kept between leases: both optimizers find theirs
again within the warm-up.
"""

import argparse
import csv
import json
import multiprocessing
import queue as queues
import threading
import time
from pathlib import Path
from typing import Any

import torch

from training import marks, shape
from training.batches import GROUPS, MemoTokenizer, batched, encode, held_out_examples, release_code, work
from training.model import Moved, Nano, answer, load, save
from training.optimizer import Optimizer

START = time.time()


def log(*words: object) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.time() - START:6.1f}]", *words, flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument(
        "--code", type=Path, help="the release's joint_schema_model.py (default: that of clef-finetune)"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="folder of the last lease's checkpoint")
    parser.add_argument("--seconds", type=float, required=True, help="stop training this long after the start")
    parser.add_argument("--steps", type=int, default=10**9, help="stop at this step")
    parser.add_argument("--decay-from", type=int, default=10**9)
    parser.add_argument("--decay-to", type=int, default=10**9)
    parser.add_argument("--tokens", type=int, default=61440, help="tokens of a batch, padding included")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.05, help="weight decay")
    parser.add_argument("--averaging", type=float, default=0.998)
    parser.add_argument("--language", type=float, default=0.1, help="weight of the next-token loss")
    parser.add_argument("--smoothing", type=float, default=0.0, help="label smoothing for public text")
    parser.add_argument("--dropout", type=float, default=0.1, help="in the head")
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate", type=int, default=400, help="held-out examples per group")
    parser.add_argument("--log", type=int, default=50)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    return parser.parse_args()


def held_out(args: argparse.Namespace, split: Any, count: int, pad: int) -> list[dict[str, Any]]:
    """Batches of held-out examples."""
    code, tokenizer = release_code(args.code), MemoTokenizer(args.tokenizer)
    rows = (encode(code, tokenizer, example) for example in held_out_examples(split, count))
    return list(batched(rows, args.tokens, pad, rest=True))


def _held_out_worker(queue: Any, args: argparse.Namespace, pad: int) -> None:
    queue.put(
        [held_out(args, "calibration", min(60, args.evaluate), pad), held_out(args, "evaluation", args.evaluate, pad)]
    )


def _stage(source: Any, staged: "queues.Queue[Moved]", device: torch.device, stop: threading.Event) -> None:
    while not stop.is_set():
        moved = Moved(source.get(), device)
        while not stop.is_set():
            try:
                staged.put(moved, timeout=0.5)
                break
            except queues.Full:
                continue


def factor_at(step: int, since: int, args: argparse.Namespace) -> float:
    """Learning-rate factor: warm-up over the lease's first 100 steps, then flat, then linearly down."""
    warm = min(1.0, (since + 1) / 100)
    if step < args.decay_from:
        return warm
    return min(warm, max(0.01, float(args.decay_to - step) / float(args.decay_to - args.decay_from)))


# Long: a script, read from top to bottom.
def main() -> None:
    """Train until the time or the steps are over, evaluate, write the checkpoint."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {"step": 0, "tokens": 0, "seconds": 0.0, "lease": 0}
    if args.resume:
        state = json.loads((args.resume / "state.json").read_text())
    state["lease"] += 1
    pad = shape.SPECIAL_TOKENS.index(shape.PAD)
    context = multiprocessing.get_context("fork")  # before CUDA starts in this process
    source: Any = context.Queue(maxsize=48)
    aside: Any = context.Queue()
    processes = [context.Process(target=_held_out_worker, args=(aside, args, pad), daemon=True)]
    first = args.seed * 10**8 + state["lease"] * 10**6
    for index in range(args.workers):
        job = (source, first + index, args.workers, args.tokenizer, args.code, args.tokens, pad)
        processes.append(context.Process(target=work, args=job, daemon=True))
    for process in processes:
        process.start()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed + state["lease"])
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 products here are the small triangular inverses
    model = Nano(args.dropout)
    if args.resume:
        model.load_state_dict(load(args.resume, "weights"))
    model.to(device).train()
    optimizer = Optimizer(
        list(model.backbone.named_parameters()), list(model.head.named_parameters()),
        list(model.lm_head.named_parameters()), muon_lr=args.muon_lr, adam_lr=args.adam_lr, decay=args.decay,
    )  # fmt: skip
    log(f"{device}, torch {torch.__version__}, {sum(p.numel() for p in model.parameters())} parameters, {state}")
    if not args.eager:
        model.backbone.compile_parts()
    staged: queues.Queue[Moved] = queues.Queue(maxsize=8)
    stop = threading.Event()
    threading.Thread(target=_stage, args=(source, staged, device, stop), daemon=True).start()

    since, curve, losses = 0, [], []
    mark, mark_tokens = time.time(), 0
    calibration = None
    while time.time() - START < args.seconds and state["step"] < args.steps:
        batch = staged.get()
        try:
            loss, answers = model.loss(batch, args.language, args.smoothing)
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            if since or args.eager:
                raise
            # Losing the compiler costs speed, losing the lease costs everything.
            log("compiling failed, going on without:", repr(error)[:2000])
            model.backbone.parts = {name: getattr(part, "_torchdynamo_orig_callable", part)
                                    for name, part in model.backbone.parts.items()}  # fmt: skip
            model.zero_grad(set_to_none=True)
            args.eager = True
            continue
        optimizer.step(factor_at(state["step"], since, args), min(args.averaging, (since + 1) / (since + 10)))
        losses.append(answers)
        state["step"] += 1
        since += 1
        state["tokens"] += batch.tokens
        mark_tokens += batch.tokens
        if since in (1, 10) or state["step"] % args.log == 0:
            mean = float(torch.stack(losses).mean())
            rate = mark_tokens / (time.time() - mark)
            memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
            log(f"step {state['step']} loss {mean:.4f} {rate / 1e3:.0f}k tokens/s, {memory:.1f} GiB")
            if not mean < 100:
                raise SystemExit(f"the loss is {mean}: stopped")
            curve.append([state["lease"], state["step"], state["tokens"], round(mean, 4), round(rate), "", ""])
            losses, mark, mark_tokens = [], time.time(), 0
        if since and state["step"] % (20 * args.log) == 0:
            if calibration is None and not aside.empty():
                calibration, evaluation = aside.get()
            if calibration is not None:
                optimizer.swap()
                rows = marks.table(answer(model, calibration, device))
                optimizer.swap()
                brief = {r["group"]: r["accuracy"] for r in rows if r["type"] == "all"}
                everything = next(r for r in rows if r["group"] == "all")
                log("calibration split:", brief, "nll", everything["nll"])
                curve[-1][-2:] = [everything["accuracy"], everything["nll"]]
                mark, mark_tokens = time.time(), 0
    if device.type == "cuda":
        torch.cuda.synchronize()
    state["seconds"] = round(state["seconds"] + time.time() - START, 1)
    log("training over:", state)
    if calibration is None:
        calibration, evaluation = aside.get()
    for process in processes:
        process.kill()
    stop.set()
    save(dict(model.state_dict()), args.out, "weights", torch.float32, 2)
    optimizer.swap()
    save(dict(model.state_dict()), args.out, "average", torch.bfloat16, 1)
    (args.out / "state.json").write_text(json.dumps(state))
    with (args.out / "curve.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows(curve)
    log("checkpoint written")
    rows = marks.table(answer(model, evaluation, device))
    (args.out / "marks.json").write_text(json.dumps({"state": state, "groups": GROUPS, "rows": rows}))
    print(marks.text(rows), flush=True)
    log("done")


if __name__ == "__main__":
    main()
