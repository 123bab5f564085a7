//! Guests for tests, written as text, and settings of theirs.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::Resolve;

use crate::component::PolicyComponent;
use crate::engine::PolicyEngine;
use crate::settings::{SettingRange, SettingSchema};

/// Bodies of the functions of a guest that orders requests. Its memory holds its description from
/// 1024, an `ok` at 1100, and results from 1200.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Body of `configure`.
    pub configure: &'static str,
    /// Body of `observe`.
    pub observe: &'static str,
    /// Body of `order`.
    pub order: &'static str,
    /// Body of `snapshot`.
    pub snapshot: &'static str,
    /// Body of `restore`.
    pub restore: &'static str,
}

/// A setting `cost` with these values.
#[must_use]
pub fn setting(values: SettingRange, default: Option<&str>) -> SettingSchema {
    SettingSchema {
        key: "cost".to_owned(),
        about: "Of a request.".to_owned(),
        values,
        default: default.map(str::to_owned),
    }
}

/// An `order` that returns the requests as they are: the ids out of records of 16 bytes.
pub const ECHO: &str = "(local $i i32)
    (block $done (loop $next
        (br_if $done (i32.ge_u (local.get $i) (local.get 3)))
        (i64.store
            (i32.add (local.get 2) (i32.mul (local.get $i) (i32.const 8)))
            (i64.load (i32.add (local.get 2) (i32.mul (local.get $i) (i32.const 16)))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (i32.store (i32.const 1300) (local.get 2))
    (i32.store (i32.const 1304) (local.get 3)) (i32.const 1300)";

impl Default for Guest {
    fn default() -> Self {
        Self {
            configure: "(i32.const 1100)",
            observe: "",
            order: ECHO,
            snapshot: "(i32.const 1200)",
            restore: "(i32.const 1100)",
        }
    }
}

impl Guest {
    /// The guest as a component.
    ///
    /// # Panics
    /// If a body is no WebAssembly.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        component(&self.text(), "export pointsman:scheduling/priority@0.1.0;")
    }

    /// Loads the guest.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn load(&self, engine: &PolicyEngine) -> PolicyComponent {
        PolicyComponent::load(engine, &self.bytes()).unwrap()
    }

    fn text(&self) -> String {
        let Self {
            configure,
            observe,
            order,
            snapshot,
            restore,
        } = self;
        let lifecycle = "pointsman:scheduling/lifecycle@0.1.0";
        let priority = "pointsman:scheduling/priority@0.1.0";
        format!(
            r#"(module
                (import "pointsman:scheduling/log@0.1.0" "write"
                    (func $log (param i32 i32 i32)))
                (memory (export "memory") 1)
                (global $next (mut i32) (i32.const 4096))
                (global $count (mut i32) (i32.const 0))
                (data (i32.const 1024)
                    "\00\08\00\00\04\00\00\00" "\04\08\00\00\03\00\00\00"
                    "\00\08\00\00\00\00\00\00" "\38\04\00\00\01\00\00\00"
                    "\00\00\00\00\00\00\00\00" "\01\00\00\00\01")
                (data (i32.const 2048) "test1.0")
                (; The hook priority needs names, executors and so on up to waiting. ;)
                (data (i32.const 1080) "\01\00\ff\00")
                (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
                    (local $at i32)
                    (local.set $at
                        (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
                    (global.set $next (i32.add (local.get $at) (local.get 3)))
                    (block $fits (loop $grow
                        (br_if $fits (i32.le_u (global.get $next)
                            (i32.mul (memory.size) (i32.const 65536))))
                        (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1))
                            (then unreachable))
                        (br $grow)))
                    (local.get $at))
                (func (export "{lifecycle}#describe") (result i32) (i32.const 1024))
                (func (export "{lifecycle}#configure")
                    (param i32 i32 i32 i32 i32 i32 i32 i64 i64 i64) (result i32)
                    {configure})
                (func (export "{lifecycle}#observe") (param i64 i32 i32 i32) {observe})
                (func (export "{lifecycle}#snapshot") (result i32) {snapshot})
                (func (export "{lifecycle}#restore") (param i32 i32) (result i32) {restore})
                (func (export "{priority}#order") (param i64 i64 i32 i32) (result i32) {order}))"#
        )
    }
}

/// Makes a component of the core module `text` that imports the log, and exports `lifecycle` and
/// the interfaces in `exports`.
fn component(text: &str, exports: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let wit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit");
    resolve.push_dir(wit).unwrap();
    let world = format!(
        "package test:guest;
        world guest {{
            import pointsman:scheduling/log@0.1.0;
            export pointsman:scheduling/lifecycle@0.1.0;
            {exports}
        }}"
    );
    let package = resolve.push_str("guest.wit", &world).unwrap();
    let world = resolve.select_world(&[package], None).unwrap();
    let mut module = wat::parse_str(text).unwrap();
    wit_component::embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
        .unwrap();
    ComponentEncoder::default()
        .module(&module)
        .unwrap()
        .validate(true)
        .encode()
        .unwrap()
}
