// What the host has told, what this policy has placed since, and what fits where.
//
// The SDK does this for policies in Rust. Here are the rows that a routing policy without affinity
// needs; to follow more (sequences, tenants, names), ask for them in `needs` of `describe` and add a case.

// Where on an executor a request goes; a smaller number is better.
const SLOT = 0;
const QUEUE = 1;

export class Mirror {
  // How long the host lets a request be held on purpose, in microseconds: `bounds.heldMax` of `configure`.
  heldMax = 0;

  constructor() {
    this.#forget();
  }

  // By id. An executor is `{ id, info, load, residencies, placed }`, the others are rows as in
  // `wit/types.wit`.
  #forget() {
    this.executors = new Map();
    this.devices = new Map();
    this.models = new Map();
    this.waiting = new Map();
    this.#void();
  }

  // The host may have refused what was placed. What it took is in the rows that come.
  #void() {
    for (const executor of this.executors.values()) executor.placed = null;
    this.blocksPlaced = new Map();
    this.modelsPlaced = new Map();
  }

  observe(extent, changes) {
    if (extent === "everything") this.#forget();
    else this.#void();
    for (const { tag, val } of changes) this.#apply(tag, val);
  }

  #apply(tag, row) {
    switch (tag) {
      case "executor":
        this.#executor(row.id).info = row;
        break;
      case "load":
        this.#executor(row.id).load = row;
        break;
      case "executor-gone":
        this.executors.delete(row);
        break;
      case "residency":
        this.#executor(row.executor).residencies.set(row.model, row);
        break;
      case "residency-gone":
        this.#executor(row.executor).residencies.delete(row.model);
        break;
      case "device":
        // Without blocks it is the last news of a server elsewhere, which tells of none any more.
        if (row.blocksTotal > 0) this.devices.set(row.id, row);
        else this.devices.delete(row.id);
        break;
      case "model":
        this.models.set(row.id, row);
        break;
      case "waiting":
        this.waiting.set(row.id, row);
        break;
      case "waiting-gone":
        this.waiting.delete(row);
        break;
    }
  }

  // Its rows come in any order.
  #executor(id) {
    let executor = this.executors.get(id);
    if (executor === undefined) {
      executor = { id, info: null, load: null, residencies: new Map(), placed: null };
      this.executors.set(id, executor);
    }
    return executor;
  }

  // What a request needs, of whose prompt this is cached, worked out once for all executors.
  need(request, cached, now) {
    const model = this.models.get(request.model);
    const max = model?.runningMax ?? Infinity;
    const isLimitReached = model && model.running + count(this.modelsPlaced, model.id) >= max;
    return { request, cached, isLimitReached, now, holdEnd: this.#holdEnd(request, now) };
  }

  // The time until which a request can wait on purpose, or null where the host lets it no longer.
  #holdEnd(request, now) {
    const end = request.holdEnd ?? now + this.heldMax;
    return end > now ? end : null;
  }

  // The seat an executor has for what is needed, or null: what the host checks, beforehand.
  fit(need, executor) {
    const { id, info, load } = executor;
    if (info === null || load === null || need.isLimitReached) return null;
    if (load.health !== "up" && load.health !== "degraded") return null;
    const { request } = need;
    if (request.model !== null && info.serves?.includes(request.model) === false) return null;
    if (request.allowed?.includes(id) === false || request.failedOn?.includes(id)) return null;
    if (!modelFits(need, executor) || this.#tokensShared(need, executor) === null) return null;
    if (isKeptWarm(need, executor)) return null;
    return seat(request, executor);
  }

  // Tokens of its prompt without which a request finds no blocks on an executor: 0 where it needs none of them there,
  // null where it finds no blocks with them either.
  #tokensShared({ request, cached }, { id, info }) {
    const device = this.devices.get(info.device);
    if (device === undefined || !info.tokensPerBlock) return 0;
    // All that it may need has to fit into the empty device. A server elsewhere knows that for itself.
    const bound = request.promptTokens + request.outputTokensMax;
    if (info.kind !== "remote" && bound > device.blocksTotal * info.tokensPerBlock) return null;
    const free = device.blocksFree + device.blocksCached - count(this.blocksPlaced, device.id);
    // The second comparison alone would do, but each call of a function takes much fuel here.
    if (blocksOn(request, info) <= free || blocksFor(request, info, device, 0) <= free) return 0;
    const tokens = cached.overlaps?.find((row) => row.executor === id)?.deviceTokens ?? 0;
    return blocksFor(request, info, device, tokens) <= free ? tokens : null;
  }

  // Counts a placement of this answer, which later ones must reckon with.
  place(need, executor, seat) {
    const { request } = need;
    const { info } = executor;
    const device = this.devices.get(info.device);
    // Where nobody counts blocks, none are taken.
    if (device !== undefined && info.tokensPerBlock) {
      const shared = this.#tokensShared(need, executor) ?? 0;
      add(this.blocksPlaced, device.id, blocksFor(request, info, device, shared));
    }
    executor.placed ??= {
      slots: 0,
      queued: { "latency-critical": 0, throughput: 0 },
      // Models that did not run there.
      started: new Set(),
    };
    if (seat === SLOT) executor.placed.slots += 1;
    else executor.placed.queued[request.class] += 1;
    if (request.model !== null) {
      if (!runs(request.model, executor)) executor.placed.started.add(request.model);
      add(this.modelsPlaced, request.model, 1);
    }
  }
}

export function freeSlots({ info, load, placed }) {
  return Math.max(0, info.slotsTotal - load.slotsUsed - (placed?.slots ?? 0));
}

// A slot, a place in the queue of its class, or null.
function seat(request, executor) {
  if (freeSlots(executor) > 0) return SLOT;
  const { info, load, placed } = executor;
  const before = request.class === "throughput" ? load.queuedThroughput : load.queuedCritical;
  return before + (placed?.queued[request.class] ?? 0) < info.queueLimit ? QUEUE : null;
}

// No more models than may run there.
function modelFits({ request: { model } }, executor) {
  const { info, residencies, placed } = executor;
  if (model === null || info.modelsMax === null) return true;
  const started = placed?.started ?? new Set();
  const running = [...residencies.values()].filter((row) => row.sequences > 0).length;
  const isNew = !runs(model, executor) && !started.has(model);
  return running + started.size + (isNew ? 1 : 0) <= info.modelsMax;
}

// A model that is kept warm is not driven out by another, as long as that one can be held. One that was placed there
// has done so already.
function isKeptWarm({ request: { model }, now, holdEnd }, executor) {
  if (model === null || holdEnd === null || runs(model, executor) || executor.placed?.started.size > 0) return false;
  const isHeld = (row) => row.model !== model && row.sequences === 0 && row.warmUntil > now;
  return [...executor.residencies.values()].some(isHeld);
}

function runs(model, executor) {
  return executor.residencies.get(model)?.sequences > 0;
}

// Blocks for the prompt and the first token, and where what runs cannot be taken off again for all that may be
// generated. A server elsewhere makes room for itself.
function blocksOn(request, info) {
  const makesRoom = info.preempts || info.kind === "remote";
  const generated = makesRoom ? Math.min(1, request.outputTokensMax) : request.outputTokensMax;
  return Math.ceil((request.promptTokens + generated) / info.tokensPerBlock);
}

// Those of them that a placement takes where the device has so many tokens of the prompt. The tokens of a prompt are a
// guess at a server elsewhere, so that nothing takes more than half of all there.
function blocksFor(request, info, device, cachedTokens) {
  const spared = blocksSpared(request.promptTokens, info, device, cachedTokens);
  const blocks = Math.max(0, blocksOn(request, info) - spared);
  return info.kind === "remote" ? Math.min(blocks, Math.ceil(device.blocksTotal / 2)) : blocks;
}

// Blocks of the prompt that a placement does not take: those that sequences hold for certain, and at a server elsewhere
// all that it has. A cached block of it is no gain, since it counts among the available ones.
function blocksSpared(promptTokens, info, device, cachedTokens) {
  // The last token is computed in any case, and goes into a block of the request's own.
  const shareable = Math.max(0, promptTokens - 1);
  const cached = Math.floor(Math.min(cachedTokens, shareable) / info.tokensPerBlock);
  return info.kind === "remote" ? cached : Math.max(0, cached - device.blocksCached);
}

function count(counts, id) {
  return counts.get(id) ?? 0;
}

function add(counts, id, n) {
  counts.set(id, count(counts, id) + n);
}
