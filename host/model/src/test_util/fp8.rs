//! Models in FP8 for tests: written by other code than that which reads them.

#![expect(clippy::cast_precision_loss, reason = "small numbers of tests")]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use super::models::{self, Tensor, Tensors, encode};

/// The scales of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaled {
    /// One for all, as `weight_scale`.
    Whole,
    /// One for each row, as `weight_scale`.
    Rows,
    /// One for each 128 by 128 numbers, as `weight_scale_inv`.
    Blocks,
    /// None: the tensor stays in bf16.
    Not,
}

/// A model whose projections are in FP8.
#[derive(Clone)]
pub struct Fp8Model {
    pub config: Value,
    /// The tensors, with those of the scales: type, shape and bytes.
    pub stored: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
    /// The numbers that the tensors have.
    pub numbers: Tensors,
}

/// The size of the number of a code without its sign, by the definition of the format.
fn size(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3), f32::from(code & 7) / 8.0);
    match exponent {
        0 => fraction * 2_f32.powi(-6),
        _ => (1.0 + fraction) * 2_f32.powi(exponent - 7),
    }
}

/// The code nearest to a number.
fn code(number: f32) -> u8 {
    static SIZES: LazyLock<Vec<f32>> = LazyLock::new(|| (0..0x7f).map(size).collect());
    let sizes = &*SIZES;
    let above = sizes.partition_point(|size| *size < number.abs()).min(0x7e);
    let below = above.saturating_sub(1);
    let is_below = number.abs() - sizes[below] < sizes[above] - number.abs();
    let nearest = u8::try_from(if is_below { below } else { above }).unwrap();
    nearest | u8::from(number.is_sign_negative()) << 7
}

impl Fp8Model {
    /// Writes the demo model with its projections in FP8 by blocks as the files of a folder.
    pub fn write_demo(folder: &Path) {
        let (config, tensors) = (models::demo_json("config.json"), models::demo_tensors());
        let fp8 = Self::of(&config, &tensors, |_| Scaled::Blocks);
        fs::write(folder.join("config.json"), fp8.config.to_string()).unwrap();
        fs::write(folder.join("model.safetensors"), fp8.safetensors()).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(models::demo_folder().join(name), folder.join(name)).unwrap();
        }
    }

    /// Quantises the projections of a model.
    pub fn of(config: &Value, tensors: &Tensors, scaled: impl Fn(&str) -> Scaled) -> Self {
        let mut config = config.clone();
        config["quantization_config"] = json!({"quant_method": "fp8"});
        let mut model = Self {
            config,
            stored: Vec::new(),
            numbers: Tensors::new(),
        };
        for (name, tensor) in tensors {
            let scaled = match name.ends_with("_proj.weight") {
                true => scaled(name),
                false => Scaled::Not,
            };
            model.add(name, tensor, scaled);
        }
        model
    }

    fn keep(&mut self, name: &str, tensor: &Tensor) {
        let bytes = encode(&tensor.values, Dtype::BF16);
        let stored = (name.to_owned(), Dtype::BF16, tensor.shape.clone(), bytes);
        self.stored.push(stored);
        self.numbers.insert(name.to_owned(), tensor.clone());
    }

    fn add(&mut self, name: &str, tensor: &Tensor, scaled: Scaled) {
        let rows = tensor.shape[0];
        let cols = tensor.values.len() / rows;
        let (rows_each, cols_each, shape, end) = match scaled {
            Scaled::Whole => (rows, cols, vec![], "scale"),
            Scaled::Rows => (1, cols, vec![rows, 1], "scale"),
            Scaled::Blocks => {
                let shape = vec![rows.div_ceil(128), cols.div_ceil(128)];
                (128, 128, shape, "scale_inv")
            }
            Scaled::Not => return self.keep(name, tensor),
        };
        let across = cols.div_ceil(cols_each);
        let place = |number: usize| number / cols / rows_each * across + number % cols / cols_each;
        let mut scales = vec![0.0_f32; rows.div_ceil(rows_each) * across];
        for (number, value) in tensor.values.iter().enumerate() {
            let scale = &mut scales[place(number)];
            *scale = scale.max(value.abs() / 448.0);
        }
        for (place, scale) in scales.iter_mut().enumerate() {
            // Neighbours are not alike.
            *scale *= 1.0 + ((place + name.len()) % 7) as f32;
        }
        let values = tensor.values.iter().enumerate();
        let codes = values.map(|(number, value)| code(value / scales[place(number)]));
        let codes: Vec<u8> = codes.collect();
        let numbers = codes.iter().enumerate().map(|(number, code)| {
            let size = size(code & 0x7f) * scales[place(number)];
            if code >> 7 == 1 { -size } else { size }
        });
        let tensor = Tensor {
            shape: tensor.shape.clone(),
            values: numbers.collect(),
        };
        let scales = (
            format!("{name}_{end}"),
            Dtype::F32,
            shape,
            encode(&scales, Dtype::F32),
        );
        self.stored.push(scales);
        let stored = (name.to_owned(), Dtype::F8_E4M3, tensor.shape.clone(), codes);
        self.stored.push(stored);
        self.numbers.insert(name.to_owned(), tensor);
    }

    /// The content of `model.safetensors`.
    pub fn safetensors(&self) -> Vec<u8> {
        let views = self.stored.iter().map(|(name, dtype, shape, bytes)| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    /// A tensor as it is stored.
    pub fn stored_mut(&mut self, name: &str) -> &mut (String, Dtype, Vec<usize>, Vec<u8>) {
        let mut stored = self.stored.iter_mut();
        stored.find(|(known, ..)| known == name).unwrap()
    }
}
