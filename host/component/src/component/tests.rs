//! The files that are refused as policies, and the messages.

use super::*;
use crate::compiler::CompileLimits;
use crate::fixture::Guest;

fn load(bytes: &[u8]) -> Result<PolicyComponent, LoadError> {
    PolicyComponent::load(&PolicyEngine::new().unwrap(), bytes)
}

fn load_text(text: &str) -> LoadError {
    load(&wat::parse_str(text).unwrap()).unwrap_err()
}

/// Loads a component with the imports and exports in `inside`; interfaces are empty instances.
fn load_component(inside: &str) -> LoadError {
    load_text(&format!("(component (instance $i) {inside})"))
}

const LIFECYCLE: &str = r#"(export "pointsman:scheduling/lifecycle@0.1.0" (instance $i))"#;

#[test]
fn loads_a_policy_and_finds_its_hooks() {
    let bytes = Guest::default().bytes();
    let component = load(&bytes).unwrap();
    assert_eq!(component.hooks(), HookSet::from_iter([Hook::Priority]));
    assert_eq!(component.digest(), Digest::of(&bytes));
    assert!(component.unknown_exports().is_empty());
}

#[test]
fn refuses_what_is_no_component_and_says_what_it_is() {
    assert_eq!(load(b"").unwrap_err(), LoadError::NotWebAssembly);
    assert_eq!(load(b"hello").unwrap_err(), LoadError::NotWebAssembly);
    assert_eq!(load(b"(component)").unwrap_err(), LoadError::TextFormat);
    assert_eq!(
        load(b"\x7fELF\x02\x01").unwrap_err(),
        LoadError::Precompiled
    );
    assert_eq!(load_text("(module)"), LoadError::CoreModule);
    let large = vec![0; COMPONENT_BYTES_MAX + 1];
    assert_eq!(
        load(&large).unwrap_err(),
        LoadError::TooLarge {
            bytes: COMPONENT_BYTES_MAX + 1
        }
    );
}

#[test]
fn truncations_and_flipped_bytes_do_not_make_loading_panic() {
    let engine = PolicyEngine::new().unwrap();
    let panics = |bytes: &[u8]| {
        let result = PolicyComponent::load(&engine, bytes);
        matches!(result, Err(LoadError::Panicked(_)))
    };
    let bytes = Guest::default().bytes();
    for at in 0..bytes.len() {
        assert!(!panics(&bytes[..at]), "{at} bytes");
    }
    for at in (0..bytes.len()).step_by(11) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x55;
        assert!(!panics(&flipped), "byte {at}");
    }
    assert!(load(&bytes[..bytes.len() / 2]).is_err());
    // Within the last section: what ends with a section is a component with less in it.
    let torn = load(&bytes[..bytes.len() - 1]).unwrap_err();
    assert!(matches!(torn, LoadError::Malformed(_)), "{torn}");
}

#[test]
fn refuses_imports_and_names_them_and_what_to_do() {
    let wasi = load_component(r#"(import "wasi:cli/environment@0.2.0" (instance))"#);
    assert!(
        wasi.to_string()
            .starts_with("imports wasi:cli/environment@0.2.0: "),
        "{wasi}"
    );
    assert!(wasi.to_string().contains("--stub-wasi"), "{wasi}");
    let other = load_component(r#"(import "random" (func))"#);
    assert_eq!(
        other,
        LoadError::ForbiddenImport {
            import: "random".to_owned(),
            hint: Hint::OnlyLog
        }
    );
    let hook = load_component(r#"(import "pointsman:scheduling/routing@0.1.0" (instance))"#);
    assert!(
        matches!(
            hook,
            LoadError::ForbiddenImport {
                hint: Hint::OnlyLog,
                ..
            }
        ),
        "{hook}"
    );
}

#[test]
fn refuses_another_version_of_the_interface_and_names_it() {
    for version in ["0.2.0", "1.0.0", "0.1.0-draft", "0.1"] {
        let name = format!("pointsman:scheduling/lifecycle@{version}");
        let known = scan::scan(&named(&name), &CompileLimits::default()).unwrap_err();
        assert!(
            matches!(&known, LoadError::UnknownVersion { version: v, .. } if v == version),
            "{known}"
        );
    }
    let later = format!("pointsman:scheduling/lifecycle@{}", "0.1.12");
    assert_eq!(
        scan::scan(&named(&later), &CompileLimits::default()).unwrap_err(),
        LoadError::NoHooks
    );
}

/// A component that exports `name`; valid only as far as the scan looks.
fn named(name: &str) -> Vec<u8> {
    // `wat` checks names, so the text has a valid one of the same length, replaced in the bytes.
    let stand_in = format!("{}@0.1.0", "a:b/".to_owned() + &"c".repeat(name.len() - 10));
    let text = format!(r#"(component (instance $i) (export "{stand_in}" (instance $i)))"#);
    let bytes = wat::parse_str(text).unwrap();
    let at = bytes
        .windows(stand_in.len())
        .position(|window| window == stand_in.as_bytes());
    let at = at.unwrap();
    [&bytes[..at], name.as_bytes(), &bytes[at + stand_in.len()..]].concat()
}

#[test]
fn a_policy_has_a_lifecycle_and_a_hook() {
    let priority = r#"(export "pointsman:scheduling/priority@0.1.0" (instance $i))"#;
    assert_eq!(load_component(priority), LoadError::NoLifecycle);
    assert_eq!(load_component(LIFECYCLE), LoadError::NoHooks);
    let explains = r#"(export "pointsman:scheduling/explanation@0.1.0" (instance $i))"#;
    assert_eq!(
        load_component(&format!("{LIFECYCLE} {explains}")),
        LoadError::NoHooks
    );
    let empty = load_component(&format!("{LIFECYCLE} {priority}"));
    assert!(matches!(empty, LoadError::WrongShape { .. }), "{empty}");
}

#[test]
fn what_a_nested_component_imports_is_nobodys_concern() {
    let error = load_component(r#"(component (import "wasi:cli/run@0.2.0" (instance)))"#);
    assert_eq!(error, LoadError::NoLifecycle);
}
