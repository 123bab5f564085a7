//! The refusals of models in FP8, which only some devices compute.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use pointsman_model::host::HostModel;
use pointsman_model::open::OpenModel;
use pointsman_model::test_util::fp8::{Fp8Model, Scaled};
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde_json::{Value, json};

const NAME: &str = "model.layers.0.mlp.gate_proj.weight";
const SCALES: &str = "model.layers.0.mlp.gate_proj.weight_scale";

fn config() -> Value {
    models::config(json!({"hidden_size": 192, "intermediate_size": 144}))
}

fn model(scaled: Scaled) -> Fp8Model {
    Fp8Model::of(&config(), &models::tensors(&config(), 2), |_| scaled)
}

fn opened(model: &Fp8Model) -> Result<OpenModel, String> {
    let files = models::files(&model.config, model.safetensors());
    OpenModel::open(&files).map_err(|error| error.to_string())
}

fn refusal(model: &Fp8Model) -> String {
    opened(model).unwrap_err()
}

#[test]
fn processors_refuse_fp8_by_name_before_they_read() {
    for scaled in [Scaled::Whole, Scaled::Rows, Scaled::Blocks] {
        let model = model(scaled);
        assert!(opened(&model).unwrap().fp8().is_some());
        let files = models::files(&model.config, model.safetensors());
        let refused = HostModel::load(&files).unwrap_err().to_string();
        let expected = "tensor model.layers.0.self_attn.q_proj.weight is FP8, which only CUDA devices of compute \
                        capability 8.9 or newer compute; serve the model there, or its weights in bf16 here";
        assert_eq!(refused, expected);
    }
}

#[test]
fn every_shape_of_scales_that_fits_is_read_and_others_are_told() {
    let mut changed = model(Scaled::Rows);
    for shape in [vec![144], vec![144, 1]] {
        changed.stored_mut(SCALES).2 = shape;
        opened(&changed).unwrap();
    }
    let mut whole = model(Scaled::Whole);
    for shape in [vec![], vec![1], vec![1, 1]] {
        whole.stored_mut(SCALES).2 = shape;
        opened(&whole).unwrap();
    }
    for shape in [vec![12, 12], vec![1, 144], vec![144, 1, 1], vec![72, 2]] {
        changed.stored_mut(SCALES).2 = shape.clone();
        let expected = format!(
            "embedded model.safetensors: scales {SCALES} have shape {shape:?}, and their weights [144, 192]; one scale \
             for all, one for each row, and one for each 128 by 128 numbers are supported"
        );
        assert_eq!(refusal(&changed), expected);
    }
}

#[test]
fn scales_that_are_missing_or_no_numbers_are_told() {
    let mut missing = model(Scaled::Rows);
    missing.stored.retain(|(name, ..)| name != SCALES);
    let expected = format!(
        "embedded model.safetensors: tensor {NAME} is FP8, and has neither {SCALES} nor {SCALES}_inv beside it"
    );
    assert_eq!(refusal(&missing), expected);
    for scale in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let mut wrong = model(Scaled::Rows);
        wrong.stored_mut(SCALES).3[8..12].copy_from_slice(&scale.to_le_bytes());
        let expected = format!(
            "embedded model.safetensors: scales {SCALES} are not all positive numbers; fetch it again"
        );
        assert_eq!(refusal(&wrong), expected);
    }
    let mut codes = model(Scaled::Rows);
    let scales = codes.stored_mut(SCALES);
    (scales.1, scales.3) = (Dtype::I32, scales.3.clone());
    assert!(
        refusal(&codes).contains("has type I32"),
        "{}",
        refusal(&codes)
    );
}

#[test]
fn what_is_multiplied_together_is_of_one_type_and_tables_are_no_fp8() {
    let mut partly = model(Scaled::Whole);
    let up = "model.layers.0.mlp.up_proj.weight";
    let stored = partly.stored_mut(up);
    (stored.1, stored.3) = (Dtype::BF16, vec![0; 144 * 192 * 2]);
    let expected = format!(
        "tensor {NAME} is FP8 and {up} is not, which are multiplied together; both have to be of one type"
    );
    assert_eq!(refusal(&partly), expected);
    for table in ["lm_head.weight", "model.embed_tokens.weight"] {
        let mut tables = model(Scaled::Whole);
        let stored = tables.stored_mut(table);
        (stored.1, stored.3) = (Dtype::F8_E4M3, vec![0; 99 * 192]);
        let said = refusal(&tables);
        assert!(
            said.contains(&format!("tensor {table} has type F8_E4M3;")),
            "{said}"
        );
    }
    let mut other = model(Scaled::Whole);
    other.stored_mut(NAME).1 = Dtype::F8_E5M2;
    let said = refusal(&other);
    assert!(
        said.contains(&format!("tensor {NAME} has type F8_E5M2;")),
        "{said}"
    );
}
