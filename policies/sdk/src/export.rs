//! `export!`: a policy as a component, and as a native instance.
//!
//! The generated `Guest` traits are implemented here, once, for any holder of a [`Runtime`]. The
//! macro adds the holder and the exported symbols, which must be in the policy's own crate.

/// Exports a policy: `export!(MyPolicy: routing, explanation);`
///
/// In a component: the lifecycle and the named hooks, nothing else. On every target:
/// `pub fn instance() -> Box<dyn Instance>`, the same policy behind the same calls.
#[macro_export]
macro_rules! export {
    ($policy:ty: $($hook:ident),+ $(,)?) => {
        /// A new instance of this policy, not yet configured.
        #[must_use]
        pub fn instance() -> ::std::boxed::Box<dyn $crate::Instance> {
            ::std::boxed::Box::new(PolicyInstance($crate::Runtime::new(ASKS)))
        }

        /// The wishes of this policy's hooks.
        const ASKS: $crate::Asks = $crate::Asks {
            needs: &[$($crate::__need!($hook, $policy)),+],
            orders_one: false $(|| $crate::__orders_one!($hook, $policy))+,
        };

        struct PolicyInstance($crate::Runtime<$policy>);

        impl $crate::Instance for PolicyInstance {
            fn hooks(&self) -> ::std::vec::Vec<$crate::Hook> {
                ::std::vec![$($crate::__hook!($hook)),+]
            }

            fn describe(&self) -> $crate::wire::lifecycle::Description {
                <$policy as $crate::Policy>::describe()
                    .with(ASKS, <$policy as $crate::Policy>::settings())
            }

            fn configure(
                &mut self,
                settings: &str,
                bounds: $crate::Bounds,
            ) -> ::core::result::Result<(), ::std::string::String> {
                self.0.configure(settings, bounds)
            }

            fn observe(
                &mut self,
                now: u64,
                extent: $crate::wire::types::Extent,
                changes: ::std::vec::Vec<$crate::wire::types::Change>,
            ) {
                self.0.observe(now, extent, changes);
            }

            fn snapshot(&mut self) -> ::std::vec::Vec<u8> {
                self.0.snapshot()
            }

            fn restore(
                &mut self,
                state: ::std::vec::Vec<u8>,
            ) -> ::core::result::Result<(), ::std::string::String> {
                self.0.restore(&state)
            }

            $($crate::__instance_hook!($hook);)+
        }

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            ::std::thread_local! {
                static RUNTIME: ::core::cell::RefCell<$crate::Runtime<$policy>> =
                    ::core::cell::RefCell::new($crate::Runtime::new(ASKS));
            }

            impl $crate::component::Host for Component {
                type Policy = $policy;

                const ASKS: $crate::Asks = ASKS;

                fn with<R>(call: impl FnOnce(&mut $crate::Runtime<$policy>) -> R) -> R {
                    RUNTIME.with_borrow_mut(call)
                }
            }

            $crate::__export_world!(lifecycle, Component);
            $($crate::__export_world!($hook, Component);)+
        };
    };
}

/// The [`Hook`](crate::Hook) of a name.
#[doc(hidden)]
#[macro_export]
macro_rules! __hook {
    (admission) => {
        $crate::Hook::Admission
    };
    (priority) => {
        $crate::Hook::Priority
    };
    (routing) => {
        $crate::Hook::Routing
    };
    (preemption) => {
        $crate::Hook::Preemption
    };
    (budget) => {
        $crate::Hook::Budget
    };
    (explanation) => {
        $crate::Hook::Explanation
    };
    ($other:ident) => {
        ::core::compile_error!(::core::concat!(
            "no such hook: ",
            ::core::stringify!($other)
        ))
    };
}

/// The [`Hook`](crate::Hook) of a name, with what the policy reads there.
#[doc(hidden)]
#[macro_export]
macro_rules! __need {
    (admission, $policy:ty) => {
        (
            $crate::Hook::Admission,
            <$policy as $crate::Admission>::NEEDS,
        )
    };
    (priority, $policy:ty) => {
        ($crate::Hook::Priority, <$policy as $crate::Priority>::NEEDS)
    };
    (routing, $policy:ty) => {
        ($crate::Hook::Routing, <$policy as $crate::Routing>::NEEDS)
    };
    (preemption, $policy:ty) => {
        (
            $crate::Hook::Preemption,
            <$policy as $crate::Preemption>::NEEDS,
        )
    };
    (budget, $policy:ty) => {
        ($crate::Hook::Budget, <$policy as $crate::Budget>::NEEDS)
    };
    (explanation, $policy:ty) => {
        (
            $crate::Hook::Explanation,
            <$policy as $crate::Explanation>::NEEDS,
        )
    };
    ($other:ident, $policy:ty) => {
        ::core::compile_error!(::core::concat!(
            "no such hook: ",
            ::core::stringify!($other)
        ))
    };
}

/// True for a hook that asks for the order of a single request.
#[doc(hidden)]
#[macro_export]
macro_rules! __orders_one {
    (priority, $policy:ty) => {
        <$policy as $crate::Priority>::ORDERS_ONE
    };
    ($other:ident, $policy:ty) => {
        false
    };
}

/// The [`Instance`](crate::Instance) method of a hook.
#[doc(hidden)]
#[macro_export]
macro_rules! __instance_hook {
    (admission) => {
        fn admit(
            &mut self,
            at: $crate::Moment,
            arrivals: ::std::vec::Vec<$crate::wire::types::AskedRequest>,
            room: u32,
        ) -> ::std::vec::Vec<$crate::wire::admission::Verdict> {
            self.0.admit(at, &arrivals, room)
        }
    };
    (priority) => {
        fn order(
            &mut self,
            at: $crate::Moment,
            requests: ::std::vec::Vec<$crate::wire::types::AskedRequest>,
        ) -> ::std::vec::Vec<u64> {
            self.0.order(at, &requests)
        }
    };
    (routing) => {
        fn route(
            &mut self,
            at: $crate::Moment,
            requests: ::std::vec::Vec<$crate::wire::types::Cached>,
        ) -> ::std::vec::Vec<$crate::wire::routing::Verdict> {
            self.0.route(at, &requests)
        }
    };
    (preemption) => {
        fn evict(
            &mut self,
            at: $crate::Moment,
            shortage: $crate::wire::preemption::Shortage,
        ) -> ::core::option::Option<$crate::wire::preemption::Eviction> {
            self.0.evict(at, &shortage)
        }
    };
    (budget) => {
        fn allot(
            &mut self,
            at: $crate::Moment,
            tokens: $crate::wire::budget::DeviceTokens,
        ) -> $crate::wire::budget::Allotments {
            self.0.allot(at, &tokens)
        }

        fn arrange(
            &mut self,
            at: $crate::Moment,
            executor: u32,
            sequences: ::std::vec::Vec<u64>,
        ) -> $crate::wire::budget::Arrangement {
            self.0.arrange(at, executor, &sequences)
        }
    };
    (explanation) => {
        fn explain(
            &mut self,
            at: $crate::Moment,
            request: $crate::wire::types::Request,
            cached: $crate::wire::types::Cached,
        ) -> ::std::vec::Vec<$crate::wire::explanation::Candidate> {
            self.0.explain(at, &request, &cached)
        }
    };
    ($other:ident) => {};
}

/// The exported symbols of one interface.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_world {
    ($world:ident, $component:ident) => {
        $crate::wire::worlds::$world::export!(
            $component with_types_in $crate::wire::worlds::$world
        );
    };
}

/// Parts of a component that `export!` builds on.
#[doc(hidden)]
pub mod component {
    #[cfg(target_arch = "wasm32")]
    use std::cell::Cell;

    use crate::instance::Runtime;
    use crate::needs::Asks;
    use crate::policy::{Admission, Budget, Explanation, Policy, Preemption, Priority, Routing};
    use crate::wire::lifecycle::{Bounds, Description};
    use crate::wire::types::{AskedRequest, Cached, Change, Extent, Moment, Request};
    use crate::wire::{admission, budget, explanation, lifecycle, preemption, priority, routing};

    /// The holder of a component's one instance.
    pub trait Host {
        /// The policy of the component.
        type Policy: Policy;

        /// The wishes of its hooks.
        const ASKS: Asks;

        /// Calls with the instance.
        fn with<R>(call: impl FnOnce(&mut Runtime<Self::Policy>) -> R) -> R;
    }

    #[cfg(target_arch = "wasm32")]
    thread_local! {
        static HOOKED: Cell<bool> = const { Cell::new(false) };
    }

    /// A component has no standard error: the host is told what a panic says, or it is lost with the
    /// instance. Every call comes after one of `describe` and `configure`.
    #[cfg(target_arch = "wasm32")]
    fn hook_panics() {
        if !HOOKED.replace(true) {
            std::panic::set_hook(Box::new(|panic| {
                let message = panic.payload_as_str().unwrap_or("with a value of its own");
                let said = match panic.location() {
                    Some(at) => format!("panicked at {}:{}: {message}", at.file(), at.line()),
                    None => format!("panicked: {message}"),
                };
                crate::log::fault(&said);
            }));
        }
    }

    /// Natively the test that calls is told.
    #[cfg(not(target_arch = "wasm32"))]
    fn hook_panics() {}

    impl<H: Host> lifecycle::Guest for H {
        fn describe() -> Description {
            hook_panics();
            H::Policy::describe().with(H::ASKS, H::Policy::settings())
        }

        fn configure(settings: String, bounds: Bounds) -> Result<(), String> {
            hook_panics();
            H::with(|runtime| runtime.configure(&settings, bounds))
        }

        fn observe(now: u64, extent: Extent, changes: Vec<Change>) {
            H::with(|runtime| runtime.observe(now, extent, changes));
        }

        fn snapshot() -> Vec<u8> {
            H::with(Runtime::snapshot)
        }

        fn restore(state: Vec<u8>) -> Result<(), String> {
            H::with(|runtime| runtime.restore(&state))
        }
    }

    impl<H: Host<Policy: Admission>> admission::Guest for H {
        fn admit(at: Moment, arrivals: Vec<AskedRequest>, room: u32) -> Vec<admission::Verdict> {
            H::with(|runtime| runtime.admit(at, &arrivals, room))
        }
    }

    impl<H: Host<Policy: Priority>> priority::Guest for H {
        fn order(at: Moment, requests: Vec<AskedRequest>) -> Vec<u64> {
            H::with(|runtime| runtime.order(at, &requests))
        }
    }

    impl<H: Host<Policy: Routing>> routing::Guest for H {
        fn route(at: Moment, requests: Vec<Cached>) -> Vec<routing::Verdict> {
            H::with(|runtime| runtime.route(at, &requests))
        }
    }

    impl<H: Host<Policy: Preemption>> preemption::Guest for H {
        fn evict(at: Moment, shortage: preemption::Shortage) -> Option<preemption::Eviction> {
            H::with(|runtime| runtime.evict(at, &shortage))
        }
    }

    impl<H: Host<Policy: Budget>> budget::Guest for H {
        fn allot(at: Moment, tokens: budget::DeviceTokens) -> budget::Allotments {
            H::with(|runtime| runtime.allot(at, &tokens))
        }

        fn arrange(at: Moment, executor: u32, sequences: Vec<u64>) -> budget::Arrangement {
            H::with(|runtime| runtime.arrange(at, executor, &sequences))
        }
    }

    impl<H: Host<Policy: Explanation>> explanation::Guest for H {
        fn explain(at: Moment, request: Request, cached: Cached) -> Vec<explanation::Candidate> {
            H::with(|runtime| runtime.explain(at, &request, &cached))
        }
    }
}
