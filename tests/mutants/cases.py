"""The mistakes: a function, what it says, what stands there instead, and who should notice.

Names of functions and texts are those of the package; where it changes, so must they, and
`python -m tests.mutants --check` says which.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant


def _in(tests: str, *changes: tuple[str, str, str]) -> list[Mutant]:
    """Mutants that the same tests should notice, the likeliest first."""
    return [Mutant(where, before, after, tuple(tests.split())) for where, before, after in changes]


SCHEDULES = _in(
    "tests/schedule/test_schedule.py",
    ("PostLocal.__call__", "progress.step >= self.after", "progress.step > self.after"),
    ("Warmup.__call__", "math.floor(round(exponent, 9))", "round(exponent)"),
    (
        "Warmup.__call__",
        "1 + (self.local_steps - 1) * progress.step // self.period",
        "1 + self.local_steps * progress.step // self.period",
    ),
    ("Warmup.__call__", "progress.step >= self.period", "progress.step > self.period"),
    ("Piecewise.__call__", "bisect_right(self.starts, progress.step) - 1", "-1"),
    ("epochs", "math.ceil(round(number * steps_per_epoch, 9))", "round(number * steps_per_epoch)"),
    ("fraction", "math.ceil(round(part * steps, 9))", "math.ceil(part * steps)"),
    ("Position.open", "1 + _ones(self.left, first=1)", "1 + _ones(self.lengths, first=1)"),
    ("Position.open", "min(self.lockstep, _ones(self.lengths))", "_ones(self.lengths)"),
    ("Position.close", "self.left[self.depth] -= 1", ""),
    ("Position.close", "self.left[: self.depth] = [0] * self.depth", "self.left[0] = 0"),
    ("_ones", "numbers[end] == 1", "numbers[end] <= 2"),
)

ADAPTIVE = _in(
    "test_adaptive.py conformance/test_schedule.py",
    (
        "Qsr.__call__",
        "math.floor(round(wanted, 9))",
        "round(wanted)",
    ),
    ("Qsr.__call__", "progress.step < self.warmup", "progress.step <= self.warmup"),
    ("AdaComm.__call__", "math.sqrt(ratio)", "ratio"),
    ("AdaComm.__call__", 'memory["period"] = period', ""),
    (
        "AdaComm.__call__",
        'memory.setdefault("first_loss", loss)',
        'memory.__setitem__("first_loss", loss)',
    ),
    ("AdaComm.__call__", 'memory["first_rate"] / rate', 'rate / memory["first_rate"]'),
    (
        "AdaComm.__call__",
        "min(int(length) - 1, math.ceil(self.shrink * length))",
        "math.ceil(self.shrink * length)",
    ),
    ("Decreasing.__call__", "math.ceil(round(length, 9))", "math.floor(length)"),
    ("Plateau.__call__", "memory.update(best=mean, stayed=0)", "memory.update(best=mean)"),
    (
        "Plateau.__call__",
        "mean < best - self.threshold * abs(best)",
        "mean < best - self.threshold * best",
    ),
    (
        "Plateau.__call__",
        "memory.update(sum=0.0, count=0, until=progress.step + self.window)",
        "memory.update(until=progress.step + self.window)",
    ),
    ("Plateau.__call__", 'memory["stayed"] >= self.patience', 'memory["stayed"] > self.patience'),
    ("WaitingBelow.__call__", "2 * length", "4 * length"),
    ("WaitingBelow.__call__", 'waiting = waited - memory["waited"]', "waiting = waited"),
    ("WaitingBelow.__call__", "math.floor(0.75 * length)", "length"),
    (
        "Cyclic.__call__",
        "min(self.local_steps, self.period - progress.step % self.period)",
        "self.local_steps",
    ),
    ("Position.open", "self.memories[level]", "self.memories[0]"),
)

RATES = _in(
    "test_learning_rate.py",
    ("Cosine.__call__", "self.warmup_steps if step < self.cycle else 0", "0"),
    ("Cosine.__call__", "self.warmup_steps if step < self.cycle else 0", "self.warmup_steps"),
    ("Cosine.__call__", "step % self.cycle", "min(step, self.cycle)"),
    ("StepDecay.__call__", "step >= decay", "step > decay"),
)

LEVELS = _in(
    "test_level.py test_outer.py test_loop.py::resumed,does_not_average_again",
    ("Level.share", "1 if self.members.data_ptr() == self.anchor.data_ptr() else 0", "1"),
    ("Level.catch_up", "self.anchor.copy_(self.members[:, 0])", "None"),
    ("Level.begin_average", "self._averaged_rate = self._learning_rate", ""),
    ("Level._step", 'group["lr"] = base', ""),
    ("Level._step", "scale != 1.0", "False"),
    ("Level.load", 'self._learning_rate = state["learning_rate"]', ""),
    ("Level.load", 'self.anchor.copy_(state["anchor"])', "None"),
    ("average_and_share", "level.catch_up()", "None"),
    ("_shared_in_any_case", "reversed(done)", "done"),
    ("final_sync", "index >= first or level.may_differ", "level.may_differ"),
)

OUTERS = _in(
    "test_outer.py",
    ("slowmo", "block_momentum(momentum, learning_rate)", "block_momentum(momentum)"),
    (
        "bmuf",
        "sgd(learning_rate, chosen, nesterov=chosen > 0)",
        "sgd(learning_rate, chosen)",
    ),
    ("bmuf", "1 - 1 / workers", "1 / workers"),
    ("diloco", "sgd(learning_rate, momentum, nesterov=True)", "sgd(learning_rate, momentum)"),
)

DELAYED = _in(
    "tests/averaging/test_delay.py",
    ("Fragmented.final_average", "usual if usual.linear else OrderedMean()", "usual"),
    ("Fragmented.final_average", "level.reducer = usual", ""),
    (
        "Fragmented.average",
        "len(self._under_way) == self.delay.syncs",
        "len(self._under_way) > self.delay.syncs",
    ),
    ("Fragmented._apply", "members.add_(way, alpha=self.delay.correction)", "members.add_(way)"),
    ("Fragmented.begin_round", "(self._turn - 1) % self.delay.fragments", "0"),
    ("Fragmented.begin_round", "not self.may_differ", "not self._turn"),
    ("Fragmented.state", 'memory["sent"] = self._sent', ""),
    ("Fragmented.load", 'self._turn = state["turn"]', ""),
    ("Fragmented.catch_up", "self._travelling.copy_(self.members)", "None"),
)

REDUCERS = [
    *_in(
        "reduce/test_majority.py",
        (
            "reduced_wide",
            "wide.mul_((weights * collective.members).unsqueeze(-1))",
            "None",
        ),
        ("_vote", "result.sign_()", "result"),
    ),
    *_in(
        "reduce/test_power_sgd.py",
        ("PowerSgd.bound", "self._seed", "0"),
        ("PowerSgd.bound", "self._mean", "None"),
        ("PowerSgd.bound", "self.feedback", "True"),
        (
            "PowerSgd._drawn",
            'generator_for(self._seed, "power-sgd", index)',
            'generator_for(self._seed, "power-sgd")',
        ),
        ("PowerSgd._reduced", "update += self._error", ""),
        ("PowerSgd._reduced", "self._q = q.unsqueeze(1).expand(*update.shape[:2], -1)", ""),
        ("Plan.of", "rank * (rows + columns) < rows * columns", "rank < rows"),
    ),
    *_in(
        "conformance/test_compressed_mean.py reduce/test_compressed.py",
        (
            "CompressedMean._draw",
            "generator_for(seed, purpose, self._syncs, place)",
            "generator_for(seed, purpose)",
        ),
        (
            "CompressedMean._draw",
            "generator_for(seed, purpose, self._syncs, place)",
            "generator_for(seed, 'error', self._syncs, place)",
        ),
        (
            "CompressedMean._draw",
            "generator_for(seed, purpose, self._syncs, place)",
            "generator_for(seed, purpose, self._syncs, 0)",
        ),
        ("CompressedMean.load", 'state.get("syncs", 0)', "0"),
        ("Chunk.encode", "self.codec.add(payload, error, -1.0)", "None"),
        ("gathers", "members <= 2", "members <= 1"),
        ("CompressedMean._in_two_phases", "means /= collective.members", ""),
        (
            "CompressedMean._in_two_phases",
            "into[0, -1] = faulty(_owned(of_member, chunks), into)",
            "",
        ),
        ("reduced_wide", "weights * collective.members", "weights"),
        ("CompressedMean.bound", "self._fragments or Extents.of(layout)", "self._fragments"),
    ),
    *_in(
        "conformance/test_compressor.py reduce/test_int8.py reduce/test_top_k.py "
        "reduce/test_bits.py reduce/test_sign.py",
        ("Int8Codec.encode", "levels.floor_()", "levels.round_()"),
        ("Int8Codec.encode", "chunks.abs().amax(1, keepdim=True)", "chunks.abs().max()"),
        (
            "rounded_up",
            "math.ceil(exact)",
            "max(1, int(exact))",
        ),
        ("TopKCodec.encode", "x.abs()", "x"),
        ("SignCodec.read", "out[end:] = 0.0", ""),
        ("pack_signs", "x.numpy() >= 0", "x.numpy() > 0"),
        ("BFloat16Codec.fault", "sizes >= INFINITY", "sizes > INFINITY"),
    ),
    *_in(
        "reduce/test_exact.py reduce/test_ordered.py test_level.py",
        ("ExactMean.reduce", "total.div_(collective.members)", "total"),
        ("_total", "total += received[:, :, source]", ""),
        ("_total", "range(1, received.shape[2])", "range(received.shape[2] - 1, 0, -1)"),
        (
            "_mean_of",
            "return differences.div_(members).add_(first)",
            "return differences.div_(members)",
        ),
    ),
]

INNER_STATES = _in(
    "averaging/test_inner_state.py optimizer/test_mishaps.py",
    (
        "InnerStates._action",
        'due.get(key, None if key in self._named else due.get("all"))',
        'due.get(key, due.get("all"))',
    ),
    ("InnerStates.average", "syncs % rule.period == 0", "syncs % rule.period == 1"),
    ("InnerStates._average_pack", "1 / piece.count", "1.0"),
    ("_check_same_size", "min(sizes) != max(sizes)", "False"),
    ("_counters", "value.dim() == 0", "value.dim() == 1"),
    ("_scalars", "key not in counters", "True"),
    ("InnerStates._check", "self._keys and not self._checked", "False"),
)

SIGNALS = _in(
    "test_signals.py",
    ("FirstDecay.see", "rate < self.highest / 2", "rate <= self.highest / 2"),
    ("FirstDecay.see", "self.highest, self.small_falls = rate, 0", "self.highest = rate"),
    ("FirstDecay.see", "rate < self.last", "True"),
    ("Signals.needed", "bool(self.sees)", "True"),
    ("Signals.exchange", "self._coming.read()", "own"),
    ("Signals.load", "FirstDecay(**state['decay'])", "FirstDecay()"),
    ("Signals.load", "Pending.done(received)", "None"),
)

LOOP = _in(
    "test_loop.py::any_number,does_not_average_again,after_step,rounds_begin,resumed "
    "test_loop.py::gradients",
    ("GradientLevels.set_lockstep", "min(lockstep, len(self._levels))", "0"),
    ("Loop.stepped", "self.position.left[0] -= 1", ""),
    ("Loop.finish", "0 if differ else self.position.averaged", "0"),
    ("train", "loop.steps >= steps", "loop.steps > steps"),
    ("Position.beginning", "left == length", "True"),
    ("train", "loop.begin()", "None"),
)

WORKERS = [
    *_in(
        "engine/test_hosted.py",
        (
            "Workers.transform_gradients",
            "self.layout.clear_padding(self.grads[row])",
            "None",
        ),
        ("Workers.backward", "self.grads.zero_()", "None"),
        ("Workers.load", "_fill(rows[row], saved)", "None"),
    ),
    *_in(
        "sampling/test_partition.py",
        ("_dirichlet", "members[torch.randperm(len(members), generator=draw)]", "members"),
        (
            "Order.owned",
            'generator_for(self.seed, "order", epoch, worker)',
            'generator_for(self.seed, "order", epoch)',
        ),
        ("_dirichlet", "gammas / gammas.sum()", "torch.full_like(gammas, 1 / workers)"),
    ),
    *_in(
        "test_evaluation.py::chunk,recalibra,by_hand",
        ("mean_row", "params[:, start : start + CHUNK]", "params[:, :CHUNK]"),
        (
            "mean_row",
            "params[:, start : start + CHUNK].clone()",
            "params[:, start : start + CHUNK]",
        ),
        ("recalibrate", "norm.train()", "model.train()"),
        ("local_score", "evaluation_mode(model)", "torch.no_grad()"),
    ),
    *_in(
        "engine/test_checkpoints.py::second",
        ("load", 'assembly.inner_states.syncs = common["model_syncs"]', ""),
    ),
    *_in(
        "engine/test_damaged_checkpoints.py::flipped",
        ("_unsealed", "sealed != _sealed(common)", "False"),
    ),
    *_in(
        "landscape/test_sharpness.py landscape/test_statistics.py",
        ("sharpness", "radius * filters**0.5", "radius * filters"),
        ("estimated", "count / (count - 1).clamp(min=1)", "1.0"),
        ("_moments", "module.training = True", "model.train()"),
        ("evaluation_mode", "module.training = training", ""),
    ),
]

OPTIMIZER = [
    *_in(
        "optimizer/test_sequence_parallel.py",
        ("place_gradient", "gradient.placements != parameter.placements", "False"),
    ),
    *_in(
        "optimizer/test_interface.py optimizer/test_gradient_packs.py",
        ("Loop.load", 'self.inner_states.syncs = state["model_syncs"]', ""),
        ("LocalSGD.finish", "self._finished_at == self.steps", "False"),
        ("Loop.begin", "range(self.position.beginning)", "range(len(self.schedules))"),
        ("LocalSGD.zero_grad", "self._gradients.reopen()", "None"),
        ("GradientAveraging.average_scaled", "unscale(inner, scale)", "None"),
        ("Position.averaged", "left in (0, length)", "False"),
        ("GradientAveraging.mean_loss", "average_and_share(self._levels(row))", "None"),
        (
            "Loop.load",
            "self.position.lockstep = min(self.position.lockstep, state['lockstep'])",
            "",
        ),
    ),
    *_in(
        "optimizer/test_mishaps.py",
        ("LocalSGD._begin", "self._models.catch_up()", "None"),
        (
            "GradientAveraging.average_early",
            "self._finite = finite(self._gradients())",
            "",
        ),
    ),
    *_in(
        "optimizer/test_not_finite.py",
        ("Pack.average", "mark = True", ""),
        ("Overlap.start", "self.says()", "None"),
        ("GradientAveraging.not_finite", "self.reopen()", "None"),
        ("leave_out_step", "len(ranks) == len(presence.peers)", "False"),
        ("Fragmented._apply", "members.isfinite().all(-1, keepdim=True)", "torch.tensor(True)"),
        ("Level._check_finite", "own is None", "True"),
        ("Presence.marked", "now or [rank for rank in ranks if self._untold(rank)]", "now"),
        ("Agreement.spread_not_finite", "len(self._rows) == 1", "True"),
        ("Fragmented.final_average", "finite(self.members)", "finite(self.members[..., :0])"),
        ("Fragmented.settled", "index not in self._arrived", "True"),
        ("Fragmented._arrive", "self._refused[index] = error", ""),
        ("mend_buffers", "put_buffers(model, found)", ""),
        (
            "mend_buffers",
            "placement.world if whole else placement.hosted_levels[0].collective",
            "placement.hosted_levels[0].collective",
        ),
    ),
    *_in(
        "averaging/test_buffers.py",
        ("_Kept.mean", "own > least", "False"),
        ("_Kept.first", "self.everywhere.index(min(self.everywhere))", "0"),
    ),
    *_in(
        "averaging/test_level.py",
        ("made_up", "share.mul_(units).round_().div_(units)", "share"),
        ("made_up", "scale_dtype(mean.dtype)", "mean.dtype"),
        ("leave_out", "spare.says()", ""),
    ),
    *_in(
        "wire/test_presence.py",
        ("Presence.mark", "self._own.delete_key(self._marked.popleft())", ""),
    ),
    *_in(
        "optimizer/test_saved.py",
        ("_is_of_its_rank", "index < len(row) - 1", "False"),
        ("_has_tensors", "inside or key == 'reducer'", "inside"),
        ("_why_not_of_all", "Position(**own['position']).averaged < settings.levels", "False"),
        ("_why_not_of_all", "own['made_with']['average'] != 'models'", "True"),
        ("_is_averaged", "own['finished_at'] < own['steps']", "True"),
        ("check_inner", "saved.get(GROUPS, now[GROUPS]) != now[GROUPS]", "False"),
    ),
    *_in(
        "optimizer/test_same_settings.py",
        ("SameSettings._compare", "begun <= step", "True"),
        ("SameSettings.stepped", "self._compare(*self._ahead)", "None"),
        ("SameSettings._look", "loads != self._loads", "left is None"),
        ("Presence.numbered", "self._numbered += 1", ""),
    ),
    *_in(
        "optimizer/test_replaced.py",
        ("Modules.check", "id(parameter) not in there", "False"),
        ("Modules.check", "self._changed()", "None"),
        ("LocalSGD.averaged_model", "self._guards.modules.check()", "None"),
    ),
    *_in(
        "optimizer/test_set_inside.py",
        ("SetInside.watched", "all(map(torch.equal, bits, self._bits()))", "False"),
        ("SetInside.__init__", "id(p) not in ever", "True"),
    ),
    *_in(
        "optimizer/test_neighbours.py::ends,failed,its_way",
        ("Unfinished.__init__", "owner() is None", "False"),
        ("_warn", "sys.exc_info()[1] is not None", "False"),
        ("Guards.failed", "self._unfinished.averaged()", "None"),
    ),
    *_in(
        "optimizer/test_save_load.py",
        ("name_of", "f'worker-{worker:05d}'", "'worker'"),
        ("save", "tensor.to('cpu', copy=True)", "tensor"),
        ("put", "os.replace(folder, before)", "_remove(folder, files)"),
        ("Found.put", "set_random(self.tree['random'])", "None"),
        ("Found.put", "optimizer.zero_grad()", "None"),
        (
            "UsedGradients.waiting",
            "all(ref() is g and local(g)._version == before for g, (ref, before) in pairs)",
            "True",
        ),
        ("_Inert.find_class", "(module, name) in self._known", "True"),
    ),
    *_in(
        "optimizer/test_regroup.py",
        ("_put_memory", "t.get('owed', 0)", "0"),
        ("Resumable._load_own", "self._loop.open()", "None"),
        ("LocalSGD._begin", "self._loop.all_averaged", "self.steps == 0"),
    ),
    *_in("optimizer/test_join.py", ("quieten", "ddp.join_hook = refuse_join", "")),
    *_in("optimizer/test_ddp.py::some_ranks", ("Pack._fill", "marks[missing] = 0", "")),
    *_in(
        "optimizer/test_agreements.py",
        ("averaged", "row.values.copy_(saved)", "None"),
        ("GradientAveraging.set_lockstep", "min(lockstep, self._exact)", "self._exact"),
    ),
]

MUTANTS: list[Mutant] = [
    *SCHEDULES,
    *ADAPTIVE,
    *RATES,
    *LEVELS,
    *OUTERS,
    *DELAYED,
    *REDUCERS,
    *INNER_STATES,
    *SIGNALS,
    *LOOP,
    *WORKERS,
    *OPTIMIZER,
]
