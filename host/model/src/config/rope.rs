//! Rotary position embedding: queries and keys turn by angles in proportion to their positions.

use std::f32::consts::TAU;

use serde::Deserialize;

use super::{ModelConfigError, positive, refused, required, unsupported};

/// Rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the wavelengths.
    pub theta: f32,
    /// Stretch of the wavelengths for long contexts.
    pub scaling: RopeScaling,
}

/// The stretch of wavelengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// No stretch at all.
    Default,
    /// The same stretch for all wavelengths.
    Linear {
        /// Factor by which each wavelength grows.
        factor: f32,
    },
    /// A stretch for long wavelengths only, as in Llama 3.1.
    Llama3 {
        /// Factor by which long wavelengths grow.
        factor: f32,
        /// Wavelengths longer than the original context divided by this are long.
        low_freq_factor: f32,
        /// Wavelengths shorter than the original context divided by this stay; those between are
        /// interpolated.
        high_freq_factor: f32,
        /// The context the model was first trained for, in tokens.
        original_context: f32,
    },
    /// A stretch for pairs of dimensions that turn slowly, and longer queries and keys: `YaRN`, Peng et al.,
    /// 2023.
    Yarn {
        /// Factor by which the wavelengths of slow pairs grow.
        factor: f32,
        /// Pairs that turn more often than this in the original context are fast, and stay.
        beta_fast: f32,
        /// Pairs that turn less often than this are slow; those between are interpolated.
        beta_slow: f32,
        /// The context the model was first trained for, in tokens.
        original_context: f32,
        /// Factor by which queries and keys grow.
        attention_factor: f32,
    },
}

/// The rotation of a head at each position.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// Radians per position, for each pair of the head's dimensions.
    pub frequencies: Vec<f32>,
    /// Factor by which the head grows.
    pub amplitude: f32,
}

/// The keys of a rotary embedding. Both versions write its type under one or both of two names.
#[derive(Default, Deserialize)]
pub(super) struct RopeFile {
    pub(super) rope_theta: Option<f32>,
    rope_type: Option<String>,
    r#type: Option<String>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    attention_factor: Option<f32>,
    mscale: Option<f32>,
    mscale_all_dim: Option<f32>,
    truncate: Option<bool>,
    partial_rotary_factor: Option<f32>,
}

// === impl Rope ===

impl Rope {
    /// Returns the rotation of heads with so many dimensions.
    #[must_use]
    pub fn rotation(&self, head_dim: usize) -> Rotation {
        let pairs = 0..head_dim / 2;
        let frequency = |pair| {
            let exponent = (2 * pair) as f32 / head_dim as f32;
            let frequency = 1.0 / self.theta.powf(exponent);
            self.scaling.apply(frequency, self.place(pair, head_dim))
        };
        Rotation {
            frequencies: pairs.map(frequency).collect(),
            amplitude: self.scaling.amplitude(),
        }
    }

    /// Returns the place of a pair between the fast ones, 0, and the slow ones, 1.
    fn place(&self, pair: usize, head_dim: usize) -> f32 {
        let RopeScaling::Yarn {
            beta_fast,
            beta_slow,
            original_context,
            ..
        } = self.scaling
        else {
            return 0.0;
        };
        // The pair that turns so often in the original context.
        let that_turns = |turns: f32| {
            let wavelengths = (original_context / (turns * TAU)).ln();
            head_dim as f32 * wavelengths / (2.0 * self.theta.ln())
        };
        let first = that_turns(beta_fast).floor().max(0.0);
        let last = that_turns(beta_slow).ceil().min(head_dim as f32 - 1.0);
        // As transformers does where both are the same.
        let width = if first == last { 0.001 } else { last - first };
        ((pair as f32 - first) / width).clamp(0.0, 1.0)
    }
}

impl RopeScaling {
    /// Stretches a wavelength, given as a frequency. `place` is the pair's between fast and slow ones.
    fn apply(self, frequency: f32, place: f32) -> f32 {
        match self {
            Self::Default => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                // Number of wavelengths in the original context.
                let turns = original_context * frequency / TAU;
                let share = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let kept = share.clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
            Self::Yarn { factor, .. } => place * frequency / factor + (1.0 - place) * frequency,
        }
    }

    fn amplitude(self) -> f32 {
        match self {
            Self::Default | Self::Linear { .. } | Self::Llama3 { .. } => 1.0,
            Self::Yarn {
                attention_factor, ..
            } => attention_factor,
        }
    }

    /// Returns the longest context in tokens, of a model whose configuration says `context`: with `YaRN` many
    /// give that before the stretch, and with a linear stretch those that give the `stretched` one beside it.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "both are positive, and what is too large stays so"
    )]
    pub(super) fn context(self, context: usize, stretched: Option<usize>) -> usize {
        match self {
            Self::Default | Self::Llama3 { .. } => context,
            Self::Linear { .. } => context.max(stretched.unwrap_or(0)),
            Self::Yarn {
                factor,
                original_context,
                ..
            } => context.max((original_context * factor) as usize),
        }
    }
}

// === impl Rotation ===

impl Rotation {
    /// Makes the wavelength of each pair longer by its factor.
    pub(crate) fn stretch(&mut self, factors: &[f32]) {
        for (frequency, factor) in self.frequencies.iter_mut().zip(factors) {
            *frequency /= factor;
        }
    }

    /// Appends the cosines of a position's angles, then their sines.
    pub fn push(&self, position: u32, angles: &mut Vec<f32>) {
        let turned = self.frequencies.iter();
        let turned = turned.map(|frequency| position as f32 * frequency);
        angles.extend(turned.clone().map(|angle| angle.cos() * self.amplitude));
        angles.extend(turned.map(|angle| angle.sin() * self.amplitude));
    }
}

// === impl RopeFile ===

impl RopeFile {
    /// Reads the stretch, of a model whose configuration says it has `context` tokens.
    pub(super) fn scaling(&self, context: usize) -> Result<RopeScaling, ModelConfigError> {
        if let Some(part) = self.partial_rotary_factor.filter(|part| *part != 1.0) {
            return unsupported("partial_rotary_factor", part.to_string(), "1 is");
        }
        let kind = self.rope_type.as_deref().or(self.r#type.as_deref());
        match kind.unwrap_or("default") {
            "default" => Ok(RopeScaling::Default),
            "linear" => Ok(RopeScaling::Linear {
                factor: required("factor", self.factor)?,
            }),
            "llama3" => self.llama3(),
            "yarn" => self.yarn(context),
            other => unsupported(
                "rope_type",
                other.to_owned(),
                "default, linear, llama3 and yarn are",
            ),
        }
    }

    fn llama3(&self) -> Result<RopeScaling, ModelConfigError> {
        let low_freq_factor = required("low_freq_factor", self.low_freq_factor)?;
        let high_freq_factor = required("high_freq_factor", self.high_freq_factor)?;
        if high_freq_factor <= low_freq_factor {
            let must = format!("more than low_freq_factor, {low_freq_factor}");
            return refused("high_freq_factor", high_freq_factor, must);
        }
        let original = self.original_max_position_embeddings;
        Ok(RopeScaling::Llama3 {
            factor: required("factor", self.factor)?,
            low_freq_factor,
            high_freq_factor,
            original_context: required("original_max_position_embeddings", original)?,
        })
    }

    fn yarn(&self, context: usize) -> Result<RopeScaling, ModelConfigError> {
        if self.truncate == Some(false) {
            return unsupported("truncate", "false".to_owned(), "true is");
        }
        let factor = required("factor", self.factor)?;
        let (beta_fast, beta_slow) = (
            self.beta_fast.unwrap_or(32.0),
            self.beta_slow.unwrap_or(1.0),
        );
        if beta_fast <= beta_slow {
            let must = format!("more than beta_slow, {beta_slow}");
            return refused("beta_fast", beta_fast, must);
        }
        let original = self.original_max_position_embeddings;
        let attention_factor = self.attention_factor.unwrap_or_else(|| {
            let length = |scale: f32| 0.1 * scale * factor.max(1.0).ln() + 1.0;
            match (self.mscale, self.mscale_all_dim) {
                (Some(one), Some(other)) => length(one) / length(other),
                _ => length(1.0),
            }
        });
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: positive("beta_fast", beta_fast)?,
            beta_slow: positive("beta_slow", beta_slow)?,
            original_context: positive(
                "original_max_position_embeddings",
                original.unwrap_or(context as f32),
            )?,
            attention_factor: positive("attention_factor", attention_factor)?,
        })
    }
}
