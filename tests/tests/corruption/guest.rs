//! The smallest policy: it orders requests as they are.

use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::Resolve;

/// The core module. Its memory holds its description from 1024, an `ok` at 1100, and results from
/// 1200.
const MODULE: &str = r#"(module
    (import "pointsman:scheduling/log@0.1.0" "write" (func (param i32 i32 i32)))
    (memory (export "memory") 4)
    (global $next (mut i32) (i32.const 4096))
    (data (i32.const 1024)
        "\00\08\00\00\05\00\00\00" "\05\08\00\00\03\00\00\00"
        "\00\08\00\00\00\00\00\00" "\38\04\00\00\01\00\00\00"
        "\00\00\00\00\00\00\00\00" "\01\00\00\00\01")
    (data (i32.const 2048) "small1.0")
    (; The hook priority needs waiting requests. ;)
    (data (i32.const 1080) "\01\00\80\00")
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
        (local $at i32)
        (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
        (global.set $next (i32.add (local.get $at) (local.get 3)))
        (if (i32.gt_u (global.get $next) (i32.mul (memory.size) (i32.const 65536)))
            (then (drop (memory.grow (i32.const 4)))))
        (local.get $at))
    (func (export "pointsman:scheduling/lifecycle@0.1.0#describe") (result i32) (i32.const 1024))
    (func (export "pointsman:scheduling/lifecycle@0.1.0#configure")
        (param i32 i32 i32 i32 i32 i32 i32 i64 i64 i64) (result i32)
        (i32.const 1100))
    (func (export "pointsman:scheduling/lifecycle@0.1.0#observe") (param i64 i32 i32 i32)
        (global.set $next (i32.const 4096)))
    (func (export "pointsman:scheduling/lifecycle@0.1.0#snapshot") (result i32) (i32.const 1200))
    (func (export "pointsman:scheduling/lifecycle@0.1.0#restore") (param i32 i32) (result i32)
        (i32.const 1100))
    (func (export "pointsman:scheduling/priority@0.1.0#order")
        (param i64 i64 i32 i32) (result i32)
        (; The ids of the requests asked about, moved together. ;)
        (local $i i32)
        (block $done (loop $next
            (br_if $done (i32.ge_u (local.get $i) (local.get 3)))
            (i64.store
                (i32.add (local.get 2) (i32.mul (local.get $i) (i32.const 8)))
                (i64.load (i32.add (local.get 2) (i32.mul (local.get $i) (i32.const 16)))))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br $next)))
        (i32.store (i32.const 1300) (local.get 2))
        (i32.store (i32.const 1304) (local.get 3))
        (i32.const 1300)))"#;

const WORLD: &str = "package test:guest;
    world guest {
        import pointsman:scheduling/log@0.1.0;
        export pointsman:scheduling/lifecycle@0.1.0;
        export pointsman:scheduling/priority@0.1.0;
    }";

/// Makes the component, with the tools of policy authors.
pub(crate) fn small() -> Vec<u8> {
    let mut resolve = Resolve::default();
    resolve
        .push_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../wit"))
        .unwrap();
    let package = resolve.push_str("guest.wit", WORLD).unwrap();
    let world = resolve.select_world(&[package], None).unwrap();
    let mut module = wat::parse_str(MODULE).unwrap();
    let encoding = StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut module, &resolve, world, encoding).unwrap();
    let encoder = ComponentEncoder::default().module(&module).unwrap();
    encoder.validate(true).encode().unwrap()
}
