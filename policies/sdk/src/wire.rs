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

pub use worlds::admission::exports::pointsman::scheduling::admission;
pub use worlds::budget::exports::pointsman::scheduling::budget;
pub use worlds::common::pointsman::scheduling::{log, types};
pub use worlds::explanation::exports::pointsman::scheduling::explanation;
pub use worlds::lifecycle::exports::pointsman::scheduling::lifecycle;
pub use worlds::preemption::exports::pointsman::scheduling::preemption;
pub use worlds::priority::exports::pointsman::scheduling::priority;
pub use worlds::routing::exports::pointsman::scheduling::routing;

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
        wit_bindgen::generate!({
            path: "../../wit",
            inline: "package pointsman:sdk-lifecycle;
                world lifecycle { export pointsman:scheduling/lifecycle@0.1.0; }",
            with: {
                "pointsman:scheduling/types@0.1.0": crate::wire::worlds::common::pointsman::scheduling::types,
                "pointsman:scheduling/lifecycle@0.1.0": generate,
            },
            additional_derives: [PartialEq, Eq, Clone],
            pub_export_macro: true,
        });
    }

    pub mod admission {
        wit_bindgen::generate!({
            path: "../../wit",
            inline: "package pointsman:sdk-admission;
                world admission { export pointsman:scheduling/admission@0.1.0; }",
            with: {
                "pointsman:scheduling/types@0.1.0": crate::wire::worlds::common::pointsman::scheduling::types,
                "pointsman:scheduling/admission@0.1.0": generate,
            },
            additional_derives: [PartialEq, Eq, Clone],
            pub_export_macro: true,
        });
    }

    pub mod priority {
        wit_bindgen::generate!({
            path: "../../wit",
            inline: "package pointsman:sdk-priority;
                world priority { export pointsman:scheduling/priority@0.1.0; }",
            with: {
                "pointsman:scheduling/types@0.1.0": crate::wire::worlds::common::pointsman::scheduling::types,
                "pointsman:scheduling/priority@0.1.0": generate,
            },
            additional_derives: [PartialEq, Eq, Clone],
            pub_export_macro: true,
        });
    }

    pub mod routing {
        wit_bindgen::generate!({
            path: "../../wit",
            inline: "package pointsman:sdk-routing;
                world routing { export pointsman:scheduling/routing@0.1.0; }",
            with: {
                "pointsman:scheduling/types@0.1.0": crate::wire::worlds::common::pointsman::scheduling::types,
                "pointsman:scheduling/routing@0.1.0": generate,
            },
            additional_derives: [PartialEq, Eq, Clone],
            pub_export_macro: true,
        });
    }

    pub mod preemption {
        wit_bindgen::generate!({
            path: "../../wit",
            inline: "package pointsman:sdk-preemption;
                world preemption { export pointsman:scheduling/preemption@0.1.0; }",
            with: {
                "pointsman:scheduling/types@0.1.0": crate::wire::worlds::common::pointsman::scheduling::types,
                "pointsman:scheduling/preemption@0.1.0": generate,
            },
            additional_derives: [PartialEq, Eq, Clone],
            pub_export_macro: true,
        });
    }

    pub mod budget {
        wit_bindgen::generate!({
            path: "../../wit",
            inline: "package pointsman:sdk-budget;
                world budget { export pointsman:scheduling/budget@0.1.0; }",
            with: {
                "pointsman:scheduling/types@0.1.0": crate::wire::worlds::common::pointsman::scheduling::types,
                "pointsman:scheduling/budget@0.1.0": generate,
            },
            additional_derives: [PartialEq, Eq, Clone],
            pub_export_macro: true,
        });
    }

    pub mod explanation {
        wit_bindgen::generate!({
            path: "../../wit",
            inline: "package pointsman:sdk-explanation;
                world explanation { export pointsman:scheduling/explanation@0.1.0; }",
            with: {
                "pointsman:scheduling/types@0.1.0": crate::wire::worlds::common::pointsman::scheduling::types,
                "pointsman:scheduling/explanation@0.1.0": generate,
            },
            additional_derives: [PartialEq, Eq, Clone],
            pub_export_macro: true,
        });
    }
}
