// Reports of a policy in JavaScript: what it throws is told to the host, and `console` writes to the
// host's log. `pointsman policy build` puts this file into every component.

import log from "pointsman:scheduling/log@0.1.0";

// Most letters of a message, and of a line in the log.
const LETTERS_MAX = 2000;
// Most lines of a stack.
const FRAMES_MAX = 16;
// Most errors that one is told to be caused by.
const CAUSES_MAX = 4;
// Most lines that are kept for a host that is not there yet.
const EARLY_MAX = 16;

// What these throw as a string is an answer.
const REFUSING = ["configure", "restore"];

// === console ===

// Lines from before there was a host, when the module was loaded to make the component. Absent: the
// host is there.
let early = [];

function write(level, values) {
  const line = values.map(shown).join(" ").slice(0, LETTERS_MAX);
  if (early === undefined) log.write(level, line);
  else if (early.length < EARLY_MAX) early.push([level, line]);
}

// The host is there from an instance's first call on.
function begin() {
  if (early === undefined) return;
  const lines = early;
  early = undefined;
  for (const [level, line] of lines) log.write(level, line);
}

function shown(value) {
  if (typeof value === "string") return value;
  if (typeof value === "bigint") return `${value}n`;
  try {
    if (value instanceof Error) return [said(value), ...frames(value).map(({ text }) => text)].join("\n");
    return JSON.stringify(value, plain) ?? String(value);
  } catch {
    return Object.prototype.toString.call(value);
  }
}

function plain(key, value) {
  if (typeof value === "bigint") return `${value}n`;
  if (value instanceof Map || value instanceof Set) return [...value];
  return value;
}

globalThis.console = {
  debug: (...values) => write("debug", values),
  log: (...values) => write("info", values),
  info: (...values) => write("info", values),
  warn: (...values) => write("warn", values),
  error: (...values) => write("warn", values),
};

// === Errors ===

// The functions of an exported interface, each of which reports what it throws.
export function reported(name, functions, own) {
  const calls = functions.map((called) => [called, reporting([name, called], own)]);
  return Object.fromEntries(calls);
}

// No function of the interface has more than four parameters; to pass on a list of them costs more.
function reporting([name, called], own) {
  // Holds only if the answer cannot be passed on, which is past what JavaScript sees.
  const misfit = `answered \`${called}\` with what its interface does not have\n  in ${called}`;
  return (a, b, c, d) => {
    if (early !== undefined) begin();
    let answer;
    try {
      answer = own[called](a, b, c, d);
    } catch (thrown) {
      if (typeof own?.[called] !== "function") {
        fail(`exports no \`${name}.${called}\`, although world.wit says so\n  in ${called}`);
      }
      if (typeof thrown === "string" && REFUSING.includes(called)) throw thrown;
      fail(told(thrown));
    }
    if (answer instanceof Promise) {
      fail(`answered \`${called}\` with a promise: a policy answers at once\n  in ${called}`);
    }
    log.fault(misfit);
    return answer;
  };
}

// Ends the call, and says why.
function fail(why) {
  log.fault(why);
  // A string, and what has a message, would be an answer of `configure`.
  throw {};
}

function told(thrown) {
  if (!(thrown instanceof Error)) {
    return `threw ${shown(thrown)}\n  with no stack, which only an Error has`;
  }
  const lines = [];
  let word = "threw ";
  for (let error = thrown; error instanceof Error && lines.length < CAUSES_MAX; error = error.cause) {
    const stack = frames(error);
    const place = stack.find((frame) => frame.place !== null);
    lines.push([word + said(error, place?.place), ...stack.map(({ text }) => text)].join("\n"));
    word = "  caused by ";
  }
  return lines.join("\n");
}

function said(error, place) {
  const { name } = error;
  const kind = name === "Error" ? (error.constructor?.name ?? name) : name;
  const where = place ? ` at ${place}` : "";
  const what = error.message ? `: ${error.message}` : "";
  return `${kind}${where}${what}`.slice(0, LETTERS_MAX);
}

// The author's functions in a stack, innermost first.
function frames(error) {
  const found = [];
  for (const line of String(error.stack ?? "").split("\n")) {
    const [, caller, file, number] = line.match(/^\s*at (?:(.*) \()?\/(.*?):(\d+)(?::\d+)?\)?$/) ?? [];
    if (file === undefined || file.startsWith("build/guest/")) continue;
    const place = `${file}:${number}`;
    found.push({ place, text: caller ? `  in ${caller} at ${place}` : `  at ${place}` });
  }
  if (found.length <= FRAMES_MAX) return found;
  return [...found.slice(0, FRAMES_MAX), { place: null, text: `  and ${found.length - FRAMES_MAX} more` }];
}
