//! The demo model, which is in the binary, packed, and unpacked when it is first asked for.

use std::sync::OnceLock;

use pointsman_model::files::ModelFiles;
use pointsman_packed::{Damaged, Packed};

/// A file by its name, unpacked.
type NamedFile = (&'static str, &'static [u8]);

// `static DEMO_MODEL: Option<&[Packed]>`, by build.rs.
include!(concat!(env!("OUT_DIR"), "/demo.rs"));

/// True if this build has the demo model.
#[must_use]
pub fn has_demo_model() -> bool {
    DEMO_MODEL.is_some()
}

/// The demo model; absent: this build has none.
///
/// # Errors
/// If the binary is damaged.
pub(crate) fn demo_model() -> Result<Option<ModelFiles>, Damaged> {
    static UNPACKED: OnceLock<Result<Vec<NamedFile>, Damaged>> = OnceLock::new();
    let Some(files) = DEMO_MODEL else {
        return Ok(None);
    };
    let unpack = |file: &Packed| Ok((file.name(), &*file.unpack()?.leak()));
    let unpacked = UNPACKED.get_or_init(|| files.iter().map(unpack).collect());
    let unpacked = unpacked.as_deref().map_err(|damaged| *damaged)?;
    Ok(Some(ModelFiles::Embedded(unpacked)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_model_comes_out_of_the_binary_as_it_is_in_the_repository() {
        let model = demo_model().unwrap();
        assert_eq!(model.is_some(), cfg!(feature = "demo-model"));
        assert_eq!(has_demo_model(), model.is_some());
        let Some(model) = model else { return };
        let root = env!("CARGO_MANIFEST_DIR");
        for file in DEMO_MODEL.unwrap() {
            let path = format!("{root}/../../examples/demo-model/{}", file.name());
            let content = model.read(file.name()).unwrap().unwrap();
            assert!(content == std::fs::read(path).unwrap(), "{}", file.name());
        }
        assert_eq!(model.read("no-such-file").unwrap(), None);
    }
}
