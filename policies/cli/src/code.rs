//! Compiled code of policies, as all commands keep it.

use pointsman_experiments::code::KeptCode;

/// The code that is there already.
pub(crate) fn kept() -> KeptCode {
    // Unit tests leave the developer's own alone.
    if cfg!(test) {
        return KeptCode::in_folder(&pointsman_testkit::component::code_folder());
    }
    KeptCode::of_user()
}
