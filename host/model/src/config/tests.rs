//! Configurations read, completed and refused.

use std::error::Error;

use serde_json::{Value, json};

use super::*;

/// A configuration as transformers 5 writes it, without the keys that have defaults.
fn base() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
    })
}

fn changed(changes: Value) -> Vec<u8> {
    let mut config = base();
    let (Value::Object(keys), Value::Object(changes)) = (&mut config, changes) else {
        panic!("configurations are objects");
    };
    keys.extend(changes);
    config.to_string().into_bytes()
}

fn with(changes: Value) -> Result<LlamaConfig, ModelConfigError> {
    LlamaConfig::parse(&changed(changes))
}

fn refusal(changes: Value) -> String {
    with(changes).unwrap_err().to_string()
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let expected = LlamaConfig {
        vocab_size: 1000,
        hidden_size: 64,
        intermediate_size: 96,
        layers: 3,
        heads: 4,
        kv_heads: 4,
        head_dim: 16,
        context_tokens: 512,
        rms_norm_eps: 1e-6,
        rope: Rope {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        },
        qkv_bias: Extra::Absent,
        output_bias: Extra::Absent,
        head_norms: Extra::Absent,
        mlp_bias: Extra::Absent,
        head: Head::Own,
        quantization: Quantization::None,
    };
    assert_eq!(with(json!({})).unwrap(), expected);
    let nulls = json!({
        "num_key_value_heads": null, "head_dim": null, "rope_scaling": null,
        "attention_bias": null, "tie_word_embeddings": null, "quantization_config": null,
    });
    assert_eq!(with(nulls).unwrap(), expected);
}

#[test]
fn every_key_is_read() {
    let config = with(json!({
        "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true,
    }));
    let config = config.unwrap();
    assert_eq!((config.kv_heads, config.head_dim), (2, 32));
    assert_eq!((config.q_size(), config.kv_size()), (128, 64));
    assert_eq!((config.qkv_size(), config.group_size()), (256, 2));
    assert_eq!(config.rms_norm_eps, 1e-5);
    assert_eq!(
        (config.qkv_bias, config.output_bias),
        (Extra::Present, Extra::Present)
    );
    assert_eq!(config.mlp_bias, Extra::Present);
    assert_eq!(config.head, Head::Tied);
}

#[test]
fn both_versions_of_transformers_describe_the_same_model() {
    let llama3 = json!({
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256, "rope_type": "llama3",
    });
    let mut parameters = llama3.clone();
    parameters["rope_theta"] = json!(500_000.0);
    let four = json!({
        "torch_dtype": "bfloat16", "rope_theta": 500_000.0, "rope_scaling": llama3,
    });
    let five = json!({"dtype": "bfloat16", "rope_parameters": parameters});
    let config = with(five).unwrap();
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 256.0,
    };
    assert_eq!(
        config.rope,
        Rope {
            theta: 500_000.0,
            scaling
        }
    );
    assert_eq!(with(four).unwrap(), config);
    let old_name = json!({"rope_scaling": {"type": "linear", "factor": 2}});
    let new_name = json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0}});
    assert_eq!(with(old_name).unwrap(), with(new_name).unwrap());
}

#[test]
fn families_differ_in_what_they_have() {
    let of = |family: &str, changes: Value| {
        let mut changes = changes;
        changes["architectures"] = json!([family]);
        with(changes).unwrap()
    };
    let biases = json!({"attention_bias": true, "mlp_bias": true});
    let mistral = of("MistralForCausalLM", biases.clone());
    assert_eq!(mistral, with(json!({})).unwrap());
    let qwen2 = of("Qwen2ForCausalLM", biases.clone());
    let expected = LlamaConfig {
        qkv_bias: Extra::Present,
        ..mistral
    };
    assert_eq!(qwen2, expected);
    let qwen3 = of("Qwen3ForCausalLM", biases);
    let expected = LlamaConfig {
        output_bias: Extra::Present,
        head_norms: Extra::Present,
        ..expected
    };
    assert_eq!(qwen3, expected);
}

#[test]
fn the_context_ends_with_the_window_that_a_family_slides() {
    let context = |family: &str, window: Value, used: bool| {
        let changes = json!({
            "architectures": [family], "sliding_window": window, "use_sliding_window": used,
        });
        with(changes).unwrap().context_tokens
    };
    assert_eq!(context("MistralForCausalLM", json!(100), false), 100);
    assert_eq!(context("MistralForCausalLM", json!(1000), false), 512);
    assert_eq!(context("MistralForCausalLM", json!(null), false), 512);
    assert_eq!(context("Qwen2ForCausalLM", json!(100), false), 512);
    assert_eq!(context("Qwen3ForCausalLM", json!(100), true), 100);
    assert_eq!(context("LlamaForCausalLM", json!(100), true), 512);
}

#[test]
fn a_linear_stretch_has_the_context_that_is_said_of_it() {
    let linear = |longest: Value| {
        let rope = json!({"type": "linear", "factor": 4.0});
        let config = with(json!({"rope_scaling": rope, "max_sequence_length": longest}));
        config.unwrap().context_tokens
    };
    assert_eq!(linear(json!(2048)), 2048);
    assert_eq!(linear(json!(null)), 512);
    assert_eq!(linear(json!(256)), 512);
    assert_eq!(
        with(json!({"max_sequence_length": 2048}))
            .unwrap()
            .context_tokens,
        512
    );
}

#[test]
fn yarn_stretches_the_context_and_heads() {
    let yarn = |changes: Value| {
        let mut rope =
            json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
        rope.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        with(json!({"rope_scaling": rope})).unwrap()
    };
    assert_eq!(yarn(json!({})).context_tokens, 2048);
    let factor = |changes| yarn(changes).rope.rotation(16).amplitude;
    assert!((factor(json!({})) - 1.138_629_4).abs() < 1e-6);
    assert_eq!(factor(json!({"attention_factor": 1.5})), 1.5);
    assert_eq!(factor(json!({"mscale": 0.7, "mscale_all_dim": 0.7})), 1.0);
    // The fastest pair stays, the slowest is stretched.
    let turned = yarn(json!({})).rope.rotation(16).frequencies;
    let plain = with(json!({})).unwrap().rope.rotation(16).frequencies;
    assert_eq!(turned[0], plain[0]);
    assert_eq!(turned[7], plain[7] / 4.0);
}

#[test]
fn what_is_not_built_is_refused_by_name_with_what_is() {
    let cases = [
        (
            json!({"architectures": ["GemmaForCausalLM"]}),
            "architectures `GemmaForCausalLM` is not supported; LlamaForCausalLM, MistralForCausalLM, \
             Qwen2ForCausalLM and Qwen3ForCausalLM are",
        ),
        (
            json!({"architectures": []}),
            "architectures `` is not supported; LlamaForCausalLM, MistralForCausalLM, \
             Qwen2ForCausalLM and Qwen3ForCausalLM are",
        ),
        (
            json!({"hidden_act": "gelu"}),
            "hidden_act `gelu` is not supported; silu is",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
            "quantization_config `gptq` is not supported; weights in bf16, f16 or f32 are, and FP8 by the methods \
             fp8, fbgemm_fp8 and compressed-tensors (format float-quantized)",
        ),
        (
            json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}}),
            "quantization_config `fp8 of blocks [64,128]` is not supported; weights in bf16, f16 or f32 are, and FP8 by \
             the methods fp8, fbgemm_fp8 and compressed-tensors (format float-quantized)",
        ),
        (
            json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}),
            "quantization_config `compressed-tensors of format pack-quantized` is not supported; weights in bf16, f16 or \
             f32 are, and FP8 by the methods fp8, fbgemm_fp8 and compressed-tensors (format float-quantized)",
        ),
        (
            json!({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}),
            "rope_type `longrope` is not supported; default, linear, llama3 and yarn are",
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": false}}),
            "truncate `false` is not supported; true is",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor `0.5` is not supported; 1 is",
        ),
        (
            json!({"rope_parameters": {"partial_rotary_factor": 0.25}}),
            "partial_rotary_factor `0.25` is not supported; 1 is",
        ),
    ];
    for (changes, expected) in cases {
        assert_eq!(refusal(changes), format!("config.json: {expected}"));
    }
}

#[test]
fn sizes_that_make_no_sense_are_refused_with_what_would() {
    let llama3 = |low, high| {
        json!({"rope_parameters": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": low,
            "high_freq_factor": high, "original_max_position_embeddings": 256,
        }})
    };
    let cases = [
        (
            json!({"vocab_size": 0}),
            "vocab_size is 0; it must be between 1 and 4194304",
        ),
        (
            json!({"num_hidden_layers": 5000}),
            "num_hidden_layers is 5000; it must be between 1 and 1024",
        ),
        (
            json!({"num_attention_heads": 0}),
            "num_attention_heads is 0; it must be between 1 and 1024",
        ),
        (
            json!({"num_attention_heads": 5}),
            "hidden_size is 64; it must be a multiple of num_attention_heads, 5, or head_dim be given",
        ),
        (
            json!({"num_key_value_heads": 3}),
            "num_key_value_heads is 3; it must be a divisor of num_attention_heads, 4",
        ),
        (
            json!({"num_key_value_heads": 8}),
            "num_key_value_heads is 8; it must be between 1 and 4",
        ),
        (json!({"head_dim": 15}), "head_dim is 15; it must be even"),
        (
            json!({"max_position_embeddings": 0}),
            "max_position_embeddings is 0; it must be between 1 and 16777216",
        ),
        (
            json!({"rms_norm_eps": 0.0}),
            "rms_norm_eps is 0; it must be positive and finite",
        ),
        (
            json!({"rope_theta": -1.0}),
            "rope_theta is -1; it must be positive and finite",
        ),
        (
            json!({"rope_scaling": {"rope_type": "linear"}}),
            "factor is absent; it must be given for this rope_type",
        ),
        (
            llama3(4.0, 4.0),
            "high_freq_factor is 4; it must be more than low_freq_factor, 4",
        ),
    ];
    for (changes, expected) in cases {
        assert_eq!(refusal(changes), format!("config.json: {expected}"));
    }
}

#[test]
fn what_is_missing_or_negative_is_named() {
    let source = |json: &[u8]| {
        let error = LlamaConfig::parse(json).unwrap_err();
        assert_eq!(
            error.to_string(),
            "config.json is not a model's configuration"
        );
        error.source().unwrap().to_string()
    };
    assert!(source(b"{").contains("EOF"));
    assert!(source(br#"{"architectures": []}"#).contains("missing field `vocab_size`"));
    let said = source(&changed(json!({"hidden_size": -64})));
    assert!(said.contains("integer `-64`"), "{said}");
}

#[test]
fn a_folder_without_configuration_is_told_so() {
    let error = LlamaConfig::load(&ModelFiles::Embedded(&[])).unwrap_err();
    let expected =
        "embedded config.json does not exist; a model folder in Hugging Face's layout has one";
    assert_eq!(error.to_string(), expected);
}

fn frequencies(scaling: RopeScaling) -> Vec<f32> {
    let theta = 10_000.0;
    Rope { theta, scaling }.rotation(8).frequencies
}

#[test]
fn rope_scaling_stretches_the_wavelengths_it_is_meant_to() {
    let default = frequencies(RopeScaling::Default);
    assert_eq!(default, [1.0, 0.1, 0.01, 0.001]);
    let linear = frequencies(RopeScaling::Linear { factor: 4.0 });
    assert_eq!(linear, [0.25, 0.025, 0.0025, 0.00025]);
    // The original context holds these wavelengths 159, 16, 1.6 and 0.16 times: the first two are
    // short, the last is long, and the third lies one fifth of the way between.
    let llama3 = frequencies(RopeScaling::Llama3 {
        factor: 4.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 1000.0,
    });
    let share = (10.0 / std::f32::consts::TAU - 1.0) / 3.0;
    let third = 0.01 * share + 0.01 / 4.0 * (1.0 - share);
    let expected = [1.0, 0.1, third, 0.00025];
    for (found, expected) in llama3.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6 * expected, "{llama3:?}");
    }
}
