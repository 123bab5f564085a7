//! Pitfalls of a module: calls of the standard library that build and then panic, or do nothing, in a
//! policy.
//!
//! A call that is in the module after the linker has thrown out what is not reached leaves the name of a
//! function, or the message or place of its panic. Nobody else writes these bytes.

/// A kind of calls, and what becomes of them.
struct Pitfall {
    /// Any of these is in a module that has such a call.
    traces: &'static [&'static str],
    warning: &'static str,
}

const PITFALLS: [Pitfall; 5] = [
    Pitfall {
        traces: &["library/std/src/sys/time/unsupported.rs"],
        warning: "it reads a clock of `std::time`, which panics: the time is in each question, `at.now`",
    },
    Pitfall {
        traces: &["can't sleep"],
        warning: "it sleeps, which panics: hold a request until a time instead",
    },
    Pitfall {
        traces: &["failed to spawn thread"],
        warning: "it starts a thread, which fails: a policy has only the one that asks it",
    },
    Pitfall {
        traces: &["19hashmap_random_keys"],
        warning: "it has a hash map or set with random keys, whose order is another one after a restart: take \
                  `BTreeMap` or `BTreeSet`",
    },
    Pitfall {
        traces: &[
            "5stdio6__print",
            "5stdio7__eprint",
            "5stdio6_print17h",
            "5stdio7_eprint17h",
        ],
        warning: "what it prints vanishes: `pointsman_sdk::log` reaches the log of the server",
    },
];

/// The warnings about a module, each as a sentence about the policy.
pub(super) fn warnings(module: &[u8]) -> Vec<&'static str> {
    let has = |trace: &&str| {
        let mut places = module.windows(trace.len());
        places.any(|place| place == trace.as_bytes())
    };
    let found = PITFALLS.iter().filter(|it| it.traces.iter().any(has));
    found.map(|pitfall| pitfall.warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trace_is_found_wherever_it_is_and_nothing_is_said_of_a_module_without() {
        assert!(warnings(b"\0asm\x01\0\0\0").is_empty());
        for pitfall in &PITFALLS {
            for trace in pitfall.traces {
                let module = [b"\0asm\x01\0\0\0".as_slice(), trace.as_bytes()].concat();
                assert_eq!(warnings(&module), [pitfall.warning], "{trace}");
            }
        }
    }
}
