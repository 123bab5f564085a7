//! The types of the scheduling interface, generated from `wit/`.
//!
//! [`types`] and each hook's own types are generated once, here, and shared by every policy and
//! by native tests. There is one small world per interface, so that a policy exports the
//! lifecycle and only the hooks it names: the component encoder merges the worlds it finds.
//!
//! The documentation of each type and field is that of the interface, in `wit/types.wit` and
//! `wit/hooks.wit`.

#![expect(
    clippy::mem_forget,
    reason = "generated: what is returned is freed after the call"
)]

pub use crate::hooks::wire::*;
pub use worlds::common::pointsman::scheduling::{log, types};
pub use worlds::lifecycle::exports::pointsman::scheduling::lifecycle;

/// Generates the types of one interface, and the macro that exports it.
macro_rules! world {
    ($world:tt, $interface:tt) => {
        wit_bindgen::generate!({
            path: "../../wit",
            inline: $world,
            with: {
                "pointsman:scheduling/types@0.1.0": crate::wire::worlds::common::pointsman::scheduling::types,
                $interface: generate,
            },
            additional_derives: [PartialEq, Eq, Clone],
            pub_export_macro: true,
        });
    };
}
pub(crate) use world;

/// The generated modules. Policies use the names above, and [`crate::export`].
#[doc(hidden)]
pub mod worlds {
    pub mod common {
        wit_bindgen::generate!({
            path: "../../wit",
            inline: "package pointsman:sdk-common;
                world common {
                    import pointsman:scheduling/types@0.1.0;
                    import pointsman:scheduling/log@0.1.0;
                }",
            generate_all,
            generate_unused_types: true,
            additional_derives: [PartialEq, Eq, Clone],
        });
    }

    pub mod lifecycle {
        crate::wire::world!(
            "package pointsman:sdk-lifecycle;
                world lifecycle { export pointsman:scheduling/lifecycle@0.1.0; }",
            "pointsman:scheduling/lifecycle@0.1.0"
        );
    }
}
