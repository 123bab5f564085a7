//! `export!`: a policy as a component, and as a native instance.
//!
//! The generated `Guest` traits are implemented once, for any holder of a [`Runtime`]: that of the
//! lifecycle here, those of the hooks in `hooks`. The macro adds the holder and the exported symbols,
//! which must be in the policy's own crate.

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
        const ASKS: &[$crate::Ask] = &[$($crate::hooks::$hook::ask::<$policy>()),+];

        struct PolicyInstance($crate::Runtime<$policy>);

        impl $crate::Instance for PolicyInstance {
            fn hooks(&self) -> ::std::vec::Vec<$crate::Hook> {
                ASKS.iter().map(|ask| ask.hook).collect()
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

            $($crate::hooks::$hook::calls!();)+
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

                const ASKS: &'static [$crate::Ask] = ASKS;

                fn with<R>(call: impl FnOnce(&mut $crate::Runtime<$policy>) -> R) -> R {
                    RUNTIME.with_borrow_mut(call)
                }
            }

            $crate::wire::worlds::lifecycle::export!(
                Component with_types_in $crate::wire::worlds::lifecycle
            );
            $($crate::hooks::$hook::world::export!(
                Component with_types_in $crate::hooks::$hook::world
            );)+
        };
    };
}

/// Parts of a component that `export!` builds on.
#[doc(hidden)]
pub mod component {
    #[cfg(target_arch = "wasm32")]
    use std::cell::Cell;

    use crate::needs::Ask;
    use crate::policy::Policy;
    use crate::runtime::Runtime;
    use crate::wire::lifecycle::{self, Bounds, Description};
    use crate::wire::types::{Change, Extent};

    /// The holder of a component's one instance.
    pub trait Host {
        /// The policy of the component.
        type Policy: Policy;

        /// The wishes of its hooks.
        const ASKS: &'static [Ask];

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
}
