"use strict";
(() => {
  const POLL_MS = 1000, LATE_MS = 5000, PRESS_MS = 5000, HISTORY = 60, ROWS_MAX = 200, TRANSACTIONS = 20, DECISION = "decision on ";
  const $ = (id) => document.getElementById(id);
  const count = (n) => n == null ? "–" : Math.round(n).toLocaleString("en-US");
  const scaled = (n, units, base) => {
    let at = 0;
    while (n >= base && at < units.length - 1) { n /= base; at += 1; }
    return (n < 10 && at > 0 ? n.toFixed(1) : Math.round(n)) + " " + units[at];
  };
  const bytes = (n) => scaled(n, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
  // As the server prints measured times: 1.5s, 250ms, 2.1h.
  const UNITS = [["us", 1], ["ms", 1e3], ["s", 1e6], ["min", 6e7], ["h", 3.6e9]];
  const time = (us) => {
    if (us == null) return "–";
    const largest = (us) => UNITS.findLast(([, size]) => us >= size) || UNITS[0];
    const step = largest(us)[1] / 10;
    const rounded = Math.max(0, Math.round(us / step) * step);
    const [unit, size] = largest(rounded);
    return rounded === 0 ? "0s" : Math.round(rounded / size * 10) / 10 + unit;
  };
  const nanos = (n) => time(n == null ? null : n / 1000);
  // Text only, ever: names and reasons are others' words.
  const el = (tag, text, cls) => {
    const made = document.createElement(tag);
    if (text != null) made.textContent = text;
    if (cls) made.className = cls;
    return made;
  };
  const set = (id, text) => { $(id).textContent = text; };
  const filled = (part, whole) => (whole > 0 ? Math.min(100, 100 * part / whole) : 0) + "%";
  const width = (id, part, whole) => { $(id).style.width = filled(part, whole); };
  const field = (name, text, cls) => {
    const cell = el("td", text, cls);
    cell.dataset.f = name;
    return cell;
  };
  const pill = (text, tone) => el("span", text, "pill " + tone);
  const setPhase = (text, tone) => { set("phase", text); $("phase").className = "pill " + tone; };
  const holding = (name, ...inside) => {
    const cell = field(name);
    cell.append(...inside);
    return cell;
  };
  const below = (name, text, more, cls) => {
    const cell = field(name, text, cls);
    if (more) cell.append(el("small", more));
    return cell;
  };
  const used = (name, part, whole) => {
    const cell = field(name, count(part) + " / " + count(whole), "num");
    const bar = el("div", null, "bar"), fill = el("i");
    fill.style.width = filled(part, whole);
    bar.append(fill);
    cell.append(bar);
    return cell;
  };

  // Details that are unfolded, which outlives the next drawing.
  const unfolded = new Set();
  const foldable = (key, summary, ...inside) => {
    const box = el("details");
    box.open = unfolded.has(key);
    box.addEventListener("toggle", () => {
      // A new box that begins open says so too.
      if (box.open === unfolded.has(key)) return;
      unfolded[box.open ? "add" : "delete"](key);
      if (key.startsWith(DECISION)) drawRequests(before);
    });
    const head = el("summary", summary);
    head.dataset.key = key;
    box.append(head, ...inside);
    return box;
  };
  // A fault: a line, and its trace behind a click.
  const faulted = (key, text, trace) => {
    const [line, ...below] = text.split("\n");
    const rest = below.concat(trace ? [trace] : []).join("\n");
    return rest ? foldable("fault " + key, line, el("pre", rest)) : el("span", line);
  };

  const headers = () => {
    const key = sessionStorage.getItem("admin-key");
    return key ? { authorization: "Bearer " + key } : {};
  };

  // Rates are differences of what the server counts.
  let before = null;
  const rates = [];
  const rateOf = (now, name) => {
    if (!before || now.at_micros <= before.at_micros) return null;
    const tokens = (data) => {
      const row = data.executors.find((row) => row.name === name);
      return row && row.engine ? row.engine.generated_tokens : null;
    };
    const [last, next] = [tokens(before), tokens(now)];
    if (last == null || next == null || next < last) return null;
    return (next - last) * 1e6 / (now.at_micros - before.at_micros);
  };

  const TONES = { up: "ok", serving: "ok", degraded: "warn", draining: "warn", down: "bad",
    "in-force": "ok", refused: "bad", dropped: "bad", "rolled-back": "bad", quarantined: "bad" };
  const tone = (word) => TONES[word] || "";
  const OUTCOMES = { finished: "ok", refused: "warn", expired: "warn", failed: "bad", cancelled: "" };

  const drawLoad = (data, perExecutor) => {
    const load = data.load;
    for (const key of ["slots_used", "slots_total", "live", "queued", "parked", "blocks_used", "executors_up"])
      set(key, count(load[key]));
    set("queue_max", count(data.queue_max));
    set("executors_total", count(data.executors_total));
    set("blocks_total", count(load.blocks_total));
    const size = load.kv_bytes_total == null ? "" : bytes(load.kv_bytes_total) + " in all, ";
    set("kv-text", load.blocks_total == null ? "not told" : size + count(load.blocks_cached) + " blocks cached");
    width("slots-bar", load.slots_used, load.slots_total);
    width("queue-bar", load.queued, data.queue_max);
    width("kv-bar", load.blocks_used, load.blocks_total);
    const health = {};
    for (const row of data.executors) health[row.health] = (health[row.health] || 0) + 1;
    const others = Object.entries(health).filter(([word]) => word !== "up");
    set("executors-text", others.map(([word, n]) => n + " " + word).join(", ") || (data.executors.length ? "all serve" : ""));
    const tokens = data.executors.reduce((sum, row) => sum + (row.engine ? row.engine.generated_tokens : 0), 0);
    set("generated_tokens", count(tokens));
    const known = perExecutor.filter((rate) => rate != null);
    const rate = known.length ? known.reduce((a, b) => a + b, 0) : null;
    set("rate", count(rate));
    if (rate != null) rates.push(rate);
    if (rates.length > HISTORY) rates.shift();
    const top = Math.max(1, ...rates);
    const points = rates.map((value, idx) => (60 - rates.length + idx + 1).toFixed(1) + " " + (19 - 18 * value / top).toFixed(1));
    $("rate-line").setAttribute("d", points.length > 1 ? "M" + points.join("L") : "");
  };

  const percent = (permille) => permille == null ? "–" : (permille / 10).toFixed(permille < 1000 ? 1 : 0) + " %";
  // What is as before stays where it is: a selection in it lives on, and the focus.
  const renew = (parent, children) => {
    children.forEach((child, at) => {
      const before = parent.children[at];
      if (!before) parent.append(child);
      else if (!before.isEqualNode(child)) before.replaceWith(child);
    });
    while (parent.children.length > children.length) parent.lastElementChild.remove();
  };
  // On a narrow screen each cell shows its heading.
  const fill = (id, rows) => {
    const body = $(id), table = body.closest("table");
    const heads = [...table.querySelectorAll("th")].map((head) => head.textContent);
    for (const row of rows) [...row.cells].forEach((cell, at) => { cell.dataset.l = heads[at]; });
    renew(body, rows);
  };

  const drawActivity = (data) => {
    const totals = data.totals, sessions = data.sessions, recent = data.recent;
    for (const key of ["finished", "arrived"]) set(key, count(totals[key]));
    const others = ["failed", "expired", "refused", "cancelled"].filter((word) => totals[word] > 0);
    set("served-text", others.map((word) => count(totals[word]) + " " + word).join(", "));
    for (const [id, times] of [["wait", recent.queue_wait], ["ttft", recent.first_token]]) {
      for (const part of ["p50", "p95"]) set(id + "-" + part, time(times && times[part + "_micros"]));
      set(id + "-text", times ? "of " + count(times.count) + " in " + recent.minutes + " minutes, mean " + time(times.mean_micros)
        : "none in " + recent.minutes + " minutes");
    }
    const hour = (part) => part + " " + time(data.queue_wait[part + "_micros"]);
    set("wait-hour", data.queue_wait ? "in the last hour " + ["p10", "mean", "p90"].map(hour).join(", ") : "");
    set("sessions", count(sessions.tracked));
    set("sessions-text", sessions.session_hit_permille == null ? "none came back yet"
      : percent(sessions.session_hit_permille) + " came back to their executor");
  };

  // Bars for the minutes of the last hour, or of the time since the start.
  const MINUTE = 6e7;
  const bars = (data, id, of, whole = of, below = () => 0) => {
    const now = Math.floor(data.at_micros / MINUTE), span = Math.min(60, Math.max(10, now + 1));
    const top = Math.max(1e-9, ...data.minutes.map(whole));
    const path = data.minutes.map((minute) => {
      const age = now - Math.floor(minute.from_micros / MINUTE), wide = 60 / span;
      const high = 40 * of(minute) / top, from = 40 * below(minute) / top;
      if (age >= span || high <= 0) return "";
      const left = 60 - wide * (age + 1) + wide * 0.1;
      return "M" + left.toFixed(2) + " " + (40 - from).toFixed(2) + "h" + (wide * 0.8).toFixed(2)
        + "v-" + Math.max(0.6, high).toFixed(2) + "h-" + (wide * 0.8).toFixed(2) + "z";
    });
    $(id).setAttribute("d", path.join(""));
    return data.minutes.length ? top : null;
  };
  const drawHour = (data) => {
    const peak = (id, top, shown) => set(id, top == null || top < 1e-6 ? "none" : "up to " + shown(top));
    const part = (name, key) => (minute) => minute[name] ? minute[name][key] : 0;
    const finished = (it) => it.finished, unserved = (it) => it.unserved, ended = (it) => it.finished + it.unserved;
    bars(data, "finished-bars", finished, ended, unserved);
    bars(data, "unserved-bars", unserved, ended);
    peak("finished-peak", Math.max(0, ...data.minutes.map(finished)), count);
    peak("queued-peak", bars(data, "queued-bars", (minute) => minute.queued_max), count);
    peak("running-peak", bars(data, "running-bars", (minute) => minute.running_max), count);
    peak("tokens-peak", bars(data, "tokens-bars", (minute) => minute.output_tokens), count);
    for (const [id, name] of [["wait", "queue_wait"], ["ttft", "first_token"]]) {
      const tail = part(name, "p95_micros");
      peak(id + "-peak", bars(data, id + "-bars", tail), time);
      bars(data, id + "-middle-bars", part(name, "p50_micros"), tail);
    }
    const minutes = Math.min(60, Math.max(10, Math.floor(data.at_micros / MINUTE) + 1));
    set("hour-text", "by minute, the last " + minutes);
  };

  const drawQueue = (data) => {
    const rows = data.queue.map((waiting) => {
      const line = el("tr"), why = waiting.why;
      line.dataset.request = waiting.request;
      const left = why.until_micros == null ? "" : ", for another " + time(Math.max(0, why.until_micros - data.at_micros));
      line.append(field("request", String(waiting.request), "num"), field("age", time(waiting.age_micros), "num"),
        field("class", waiting.class), field("priority", String(waiting.priority), "num"),
        field("tenant", waiting.tenant), field("model", waiting.model || "any"),
        field("prompt", count(waiting.prompt_tokens), "num"), field("answer", count(waiting.output_tokens_max), "num"),
        field("why", why.text + left, "why"));
      return line;
    });
    fill("queue", rows);
    $("queue-table").hidden = rows.length === 0;
    $("queue-empty").hidden = rows.length > 0;
    const more = data.load.queued + data.load.parked - rows.length;
    set("queue-more", rows.length === 0 ? "" : more > 0 ? "the first " + count(rows.length) + " in order of arrival, and " + count(more) + " more" : "in order of arrival");
  };

  // The rows with the steps of requests that are unfolded, each asked for until it is told.
  const steps = new Map();
  const stepsOf = (id) => {
    if (steps.has(id)) return steps.get(id);
    const line = el("tr"), list = el("ol"), cell = holding("steps", list);
    Object.assign(cell, { className: "whole", colSpan: 11 });
    line.append(cell);
    steps.set(id, line);
    ask(id, list);
    return line;
  };
  const ask = async (id, list) => {
    try {
      const answer = await fetch("/admin/decisions/" + id, { headers: headers(), cache: "no-store" });
      const told = await answer.json();
      if (answer.status === 404) return list.append(el("li", told.error.message));
      if (!answer.ok) throw new Error(told.error.message);
      const first = told.steps.length ? told.steps[0].at_micros : 0;
      list.append(...told.steps.map((step) => {
        const line = el("li"), times = step.times ? " (" + count(step.times) + " rounds in a row)" : "";
        line.append(el("small", "+" + time(step.at_micros - first)), el("span", step.told + times));
        return line;
      }));
    } catch (error) {
      list.append(el("li", error.message));
      steps.delete(id);
    }
  };
  const drawRequests = (data) => {
    const rows = data.requests.flatMap((request) => {
      const line = el("tr"), id = request.request;
      line.dataset.ended = id;
      const outcome = holding("outcome", pill(request.outcome, OUTCOMES[request.outcome]));
      if (request.why) outcome.append(el("small", request.why));
      line.append(field("request", String(id), "num"),
        field("ended", time(data.at_micros - request.ended_micros) + " ago", "num"),
        field("tenant", request.tenant), field("model", request.model || "any"), field("executor", request.executor || "none"),
        field("wait", time(request.wait_micros), "num"), field("ttft", time(request.first_token_micros), "num"),
        field("duration", time(request.duration_micros), "num"),
        below("tokens", count(request.prompt_tokens) + " + " + count(request.output_tokens),
          request.cached_tokens ? count(request.cached_tokens) + " cached" : "", "num"), outcome,
        holding("decision", foldable(DECISION + id, request.decision || "no policy was asked")));
      return unfolded.has(DECISION + id) ? [line, stepsOf(id)] : [line];
    });
    const shown = new Set(data.requests.map((request) => request.request));
    for (const id of steps.keys()) if (!shown.has(id)) { steps.delete(id); unfolded.delete(DECISION + id); }
    fill("requests", rows);
    $("requests-table").hidden = rows.length === 0;
    $("requests-empty").hidden = rows.length > 0;
  };

  const drawTenants = (data) => {
    const against = (name, limit) => {
      if (!limit) return field(name, "no limit", "num dim");
      const cell = used(name, limit.used, limit.max);
      if (limit.used >= limit.max) cell.classList.add("full");
      return cell;
    };
    const rows = data.tenants.map((tenant) => {
      const line = el("tr"), limits = tenant.limits;
      line.dataset.tenant = tenant.name;
      line.append(field("name", tenant.name), field("weight", count(tenant.weight), "num"),
        field("running", count(tenant.running), "num"), field("waiting", count(tenant.waiting), "num"),
        field("tokens", count(tenant.tokens_total), "num"), against("requests-a-minute", limits.requests_per_minute),
        against("tokens-a-minute", limits.tokens_per_minute_max), against("at-once", limits.concurrent_max));
      return line;
    });
    fill("tenants", rows);
  };

  const drawModels = (data) => {
    const rows = data.models.map((model) => {
      const line = el("tr");
      line.dataset.model = model.model;
      line.append(field("name", model.model),
        field("running", count(model.running) + (model.running_max == null ? "" : " of " + count(model.running_max)), "num"),
        field("waiting", count(model.waiting), "num"), field("requests", count(model.requests), "num"),
        field("prompt", count(model.prompt_tokens), "num"), field("output", count(model.output_tokens), "num"),
        field("sessions", count(model.sessions), "num"));
      return line;
    });
    fill("models", rows);
  };

  const drawExecutors = (data, perExecutor) => {
    const rows = data.executors.slice(0, ROWS_MAX).map((row, idx) => {
      const activity = data.activity[idx];
      const device = data.devices.find((device) => device.name === row.device);
      const line = el("tr");
      line.dataset.executor = row.name;
      const name = holding("name", el("div", row.name), el("span", row.kind + " on " + row.device, "dim"));
      const health = holding("health", pill(row.health, tone(row.health)));
      if (row.order) health.append(" ", el("span", row.order === "remove" ? "being removed" : "by order", "dim"));
      const active = row.models_present.map((here) => here.model + (here.sequences > 0 ? " (" + here.sequences + ")" : " (kept)"));
      const sessions = activity.session_hits + activity.session_misses;
      line.append(name, health, below("models", row.models ? row.models.join(", ") : "any", active.length ? "active: " + active.join(", ") : "none active"),
        used("slots", row.slots_used, row.slots_total),
        field("utilisation", percent(activity.utilisation_permille), "num"),
        below("queued", count(row.queued), count(row.prefill_tokens_pending) + " to prefill", "num"),
        device && device.blocks_total != null ? used("blocks", row.kv_blocks_used, device.blocks_total) : field("blocks", count(row.kv_blocks_used), "num"),
        field("ttft", time(row.ttft_micros), "num"), field("itl", time(row.itl_micros), "num"),
        field("rate", count(perExecutor[idx]), "num"), field("placed", count(row.placed_total), "num"),
        below("served", count(activity.served), percent(activity.share_permille), "num"),
        field("mean", time(activity.mean_micros), "num"),
        below("sessions", percent(activity.session_hit_permille), sessions > 0 ? "of " + count(sessions) : "", "num"),
        field("report", activity.last_report_age_micros == null ? "–" : time(activity.last_report_age_micros) + " ago", "num"));
      return line;
    });
    fill("executors", rows);
    const more = data.executors_total - rows.length;
    set("executors-more", more > 0 ? "and " + count(more) + " more, in /admin/executors" : "");
  };

  const sum = (counts) => Object.values(counts || {}).reduce((a, b) => a + b, 0);
  // The worst hook stands for the policy.
  const worst = (spread, key) => {
    const values = Object.values(spread || {}).map((hook) => hook[key]).filter((value) => value != null);
    return values.length ? Math.max(...values) : null;
  };

  const latency = (spread) => spread && spread.p50 != null ? nanos(spread.p50) + " / " + nanos(spread.p99) : "–";

  const settings = (policy) => {
    const list = el("dl");
    for (const setting of policy.takes) {
      const given = policy.settings[setting.key], value = given === undefined ? setting.default : given;
      const named = el("dt", setting.key + " = " + (value == null ? "not set" : JSON.stringify(value)));
      if (given !== undefined) named.append(el("small", " by the sidecar, otherwise " + JSON.stringify(setting.default)));
      named.dataset.setting = setting.key;
      list.append(named, el("dd", setting.about + " " + setting.values + "."));
    }
    return foldable("settings of " + policy.name, policy.takes.length + " settings", list);
  };

  // Orders. A key for questions gives none, which the server says when it is tried.
  let asksOnly = false, ejecting = null;
  // The policies as the last order left them, until newer numbers come, or those of another process.
  let leftBy = null;
  const holds = (policy) => {
    const cell = field("holds", policy.holds.join(", ") || "nothing");
    if (policy.holds.length > 0 && policy.source.kind !== "embedded" && !asksOnly) {
      const button = el("button", "Eject…", "quiet");
      button.type = "button";
      button.dataset.eject = policy.name;
      button.dataset.key = "eject " + policy.name;
      button.addEventListener("click", () => askToEject(policy));
      cell.append(" ", button);
    }
    return cell;
  };
  const askToEject = (policy) => {
    ejecting = policy;
    set("eject-title", "Eject " + policy.name + "?");
    set("eject-text", "The embedded defaults decide " + policy.holds.join(", ") + " at once. "
      + "To give it back: pointsman policy bind HOOK " + policy.name);
    $("eject").showModal();
  };
  const eject = async () => {
    const { name, holds } = ejecting;
    $("eject").close();
    let said;
    try {
      const answer = await fetch("/admin/eject", { method: "POST", cache: "no-store",
        headers: { ...headers(), "content-type": "application/json" }, body: JSON.stringify({ hooks: holds }) });
      if (answer.ok) {
        leftBy = await answer.json();
        if (before) drawPolicies(leftBy, before.at_micros);
        said = name + " is ejected: the embedded defaults decide " + holds.join(", ") + ".";
      } else {
        asksOnly = answer.status === 403;
        said = name + " is not ejected: " + (await answer.json()).error.message + ".";
      }
    } catch (error) {
      said = "It is not known whether " + name + " is ejected: the server has not answered.";
    }
    set("ordered-text", said);
    $("other-key").hidden = !asksOnly;
    $("ordered").classList.add("on");
  };

  const drawPolicies = (policies, at) => {
    const hooks = Object.entries(policies.hooks).map(([hook, holder]) => {
      const box = el("div");
      box.dataset.hook = hook;
      box.append(el("span", hook), el("strong", holder ? holder.policy : "built-in rule"));
      return box;
    });
    $("hooks").replaceChildren(...hooks);
    const rows = policies.policies.map((policy) => {
      const running = policy.running, line = el("tr");
      line.dataset.policy = policy.name;
      const named = running && running.version ? policy.name + " " + running.version : policy.name;
      const from = policy.source.kind === "file" ? policy.source.path : policy.source.kind;
      // One that would decide, were there not another.
      const mode = policy.mode === "enforce" && policy.holds.length === 0 ? "idle" : policy.mode;
      const down = running && running.down_until_micros != null && running.down_until_micros > at;
      const state = holding("mode", pill(down ? "backing off" : mode,
        down ? "bad" : mode === "enforce" ? "ok" : mode === "idle" ? "" : "warn"));
      const name = holding("name", el("div", named), el("span", from, "dim"));
      if (policy.takes.length > 0) name.append(settings(policy));
      line.append(name, state,
        holds(policy),
        field("generation", count(running && running.generation), "num"),
        field("answers", count(running && sum(running.answers)), "num"),
        field("refusals", count(running && sum(running.refusals)), "num"),
        field("faults", count(running && sum(running.faults)), "num"),
        field("latency", latency({ p50: worst(running && running.latency_nanos, "p50"),
          p99: worst(running && running.latency_nanos, "p99") }), "num"),
        field("fuel", count(running && worst(running.fuel, "p99")), "num"),
        holding("digest", el("code", policy.digest.slice(0, 12))));
      return line;
    });
    fill("policies", rows);
    const folder = policies.folder;
    set("folder", folder.path ? folder.path + ": " + folder.state : "no policy folder");
  };

  const drawFaults = (policies) => {
    const rows = [];
    const add = (key, name, times, fault) => {
      if (!times) return;
      const line = el("tr");
      line.dataset.fault = name;
      const last = fault ? faulted(key, fault.line, fault.trace) : el("span", "a liveness bound ran out");
      line.append(field("name", name), field("faults", count(times), "num"), holding("fault", last));
      rows.push(line);
    };
    for (const policy of policies.policies)
      for (const running of [policy.running, ...policy.earlier])
        if (running) add(running.number, policy.name, sum(running.faults), running.fault_last);
    for (const shadow of policies.shadows)
      add(shadow.number, (shadow.policy || "number " + shadow.number) + ", a shadow", shadow.faults, shadow.fault_last);
    fill("faults", rows);
    $("faults-section").hidden = rows.length === 0;
  };

  const drawShadows = (policies) => {
    const rows = [];
    for (const shadow of policies.shadows) {
      for (const [hook, seen] of Object.entries(shadow.hooks)) {
        const line = el("tr"), holder = policies.hooks[hook];
        line.dataset.shadow = shadow.policy;
        const running = policies.policies.map((policy) => policy.running)
          .find((running) => running && holder && running.number === holder.number);
        const share = seen.compared > 0 ? (100 * seen.agreed / seen.compared).toFixed(1) + " %" : "–";
        line.append(field("policy", shadow.policy), field("hook", hook),
          field("compared", count(seen.compared), "num"), field("agreement", share, "num"),
          field("dropped", count(shadow.dropped), "num"), field("latency", latency(shadow.latency_nanos[hook]), "num"),
          field("in-force", holder ? holder.policy : "built-in rule"),
          field("latency-in-force", latency(running && running.latency_nanos[hook]), "num"));
        rows.push(line);
      }
    }
    fill("shadows", rows);
    $("shadows-section").hidden = rows.length === 0;
  };

  const drawHistory = (policies, at) => {
    const newest = policies.transactions.slice(-TRANSACTIONS).reverse();
    const rows = newest.map((done) => {
      const line = el("tr");
      line.dataset.transaction = done.number;
      const phases = Object.values(done.phases_micros || {});
      const detail = holding("why", done.why ? faulted("of transaction " + done.number, (done.step ? done.step + ": " : "") + done.why)
        : (done.hooks || []).join(", "));
      detail.className = "why";
      line.append(field("number", done.number, "num"),
        field("when", time(at - done.at_micros) + " ago"), field("policy", done.policy),
        holding("outcome", pill(done.outcome, tone(done.outcome))), detail,
        field("took", phases.length ? time(phases.reduce((a, b) => a + b, 0)) : "–", "num"),
        field("pause", time(done.pause_micros), "num"));
      return line;
    });
    fill("history", rows);
    $("history-table").hidden = rows.length === 0;
    $("history-empty").hidden = rows.length > 0;
  };

  const drawTrouble = (policies) => {
    const lines = [];
    const add = (text) => lines.push(faulted("to be sorted out: " + text.split("\n")[0], text));
    for (const clash of policies.conflicts)
      add(clash.hook + ": " + clash.kind + " (" + clash.policies.join(", ") + ")");
    for (const refused of policies.refused)
      add(refused.name + " is not in force: " + refused.step + ": " + refused.why);
    if (policies.folder.why) add("policy folder: " + policies.folder.why);
    for (const held of policies.quarantine)
      add(held.name + " " + held.digest.slice(0, 12) + " is in quarantine: " + (held.why || held.cause));
    $("trouble").classList.toggle("on", lines.length > 0);
    renew($("trouble-list"), lines.map((line) => {
      const item = el("li");
      item.append(line);
      return item;
    }));
  };

  // Nothing is drawn anew between the two halves of a click. Of a button that is not heard of again it has been let go.
  let pressed = -Infinity;
  addEventListener("pointerdown", (event) => { if (event.button === 0) pressed = performance.now(); });
  for (const end of ["pointerup", "pointercancel", "contextmenu", "blur"])
    addEventListener(end, () => setTimeout(() => { pressed = -Infinity; }));
  const draw = (data) => {
    const focus = document.activeElement && document.activeElement.dataset.key;
    drawAll(data);
    if (focus && document.activeElement.dataset.key !== focus) {
      const again = document.querySelector("[data-key=\"" + CSS.escape(focus) + "\"]");
      if (again) again.focus({ preventScroll: true });
    }
  };
  const drawAll = (data) => {
    // The server has begun anew, and so have the numbers of its requests.
    if (before && data.at_micros < before.at_micros) { steps.clear(); unfolded.clear(); }
    const perExecutor = data.executors.map((row) => rateOf(data, row.name));
    set("version", "version " + data.version);
    set("uptime", time(data.at_micros));
    set("round", data.round);
    setPhase(data.phase, tone(data.phase));
    if (!before || data.at_micros > before.at_micros) drawLoad(data, perExecutor);
    drawActivity(data);
    drawHour(data);
    drawQueue(data);
    drawRequests(data);
    drawTenants(data);
    drawModels(data);
    drawExecutors(data, perExecutor);
    if (leftBy && (data.policies.at_micros >= leftBy.at_micros || data.at_micros < before.at_micros)) leftBy = null;
    const policies = leftBy || data.policies;
    drawPolicies(policies, data.at_micros);
    drawFaults(policies);
    drawShadows(policies);
    drawHistory(policies, data.at_micros);
    drawTrouble(policies);
    before = data;
    document.body.dataset.at = data.at_micros;
  };

  let heard = null;
  const gone = (why) => {
    const since = heard == null ? "" : " for " + time((Date.now() - heard) * 1000);
    set("gone-text", why + since + ". What is below is what was last heard; trying again every second.");
    $("gone").classList.add("on");
    document.body.classList.add("gone");
    setPhase("gone", "bad");
  };
  const poll = async () => {
    try {
      const answer = await fetch("/monitor/data", { headers: headers(), cache: "no-store", signal: AbortSignal.timeout(LATE_MS) });
      const locked = answer.status === 401;
      $("locked").classList.toggle("on", locked);
      if (locked) {
        set("key-text", sessionStorage.getItem("admin-key") ? "That is not the key." : "This server wants its admin key.");
      } else if (answer.ok) {
        const data = await answer.json();
        heard = Date.now();
        $("gone").classList.remove("on");
        document.body.classList.remove("gone");
        if (performance.now() - pressed > PRESS_MS) draw(data);
      } else {
        const error = await answer.json().catch(() => null);
        gone(error ? "The server says: " + error.error.message : "The server answers " + answer.status);
      }
    } catch (error) {
      gone("The server has not answered");
    }
    setTimeout(poll, POLL_MS);
  };
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("admin-key", $("key").value);
    set("key-text", "");
    asksOnly = false;
    $("ordered").classList.remove("on");
  });
  $("other-key").addEventListener("click", () => sessionStorage.removeItem("admin-key"));
  $("eject-no").addEventListener("click", () => $("eject").close());
  $("eject-yes").addEventListener("click", eject);
  poll();
})();
