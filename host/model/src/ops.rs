//! The operations that a device must have for [`super::graph::forward`].
//!
//! An implementation is made for one step and knows its tokens, their positions and their
//! sequences' block tables; [`Activations`](Ops::Activations) have a row for each of these tokens.
//! Each operation overwrites its output whatever it held, and gives it the size it needs. A
//! device that computes later only notes down what to do; one that can fail keeps its first
//! error until the step is over.

use super::graph::HeadNorms;

/// The operations of a model like Llama.
pub trait Ops {
    /// Rows of numbers on the device.
    type Activations;
    /// A weight matrix, `[outputs, inputs]`.
    type Matrix;
    /// A weight vector.
    type Vector;

    /// Takes the tokens' rows of `table`.
    fn embed(&mut self, table: &Self::Matrix, out: &mut Self::Activations);

    /// Divides rows by their root mean square and multiplies them by `weight`.
    fn rmsnorm(
        &mut self,
        hidden: &Self::Activations,
        weight: &Self::Vector,
        out: &mut Self::Activations,
    );

    /// Adds `delta` to `hidden`, then [`Self::rmsnorm`].
    fn add_rmsnorm(
        &mut self,
        delta: &Self::Activations,
        hidden: &mut Self::Activations,
        weight: &Self::Vector,
        out: &mut Self::Activations,
    );

    /// Multiplies `x` by the transpose of `weight`, and adds `bias`.
    fn linear(
        &mut self,
        x: &Self::Activations,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Activations,
    );

    /// Adds up what all ranks of a split model ([`super::split`]) have of these rows; a model that is whole has all of
    /// it.
    fn sum(&mut self, _rows: &mut Self::Activations) {}

    /// Puts each query and each key through its norm.
    fn norm_heads(&mut self, qkv: &mut Self::Activations, norms: &HeadNorms<Self::Vector>);

    /// Turns queries and keys by their positions, and writes keys and values into the blocks.
    fn rope_write_kv(&mut self, layer: usize, qkv: &mut Self::Activations);

    /// Computes each token's attention to the positions of its sequence up to its own, through the
    /// block table.
    fn attention(&mut self, layer: usize, qkv: &Self::Activations, out: &mut Self::Activations);

    /// Multiplies the SiLU of the first half of each row by its second half.
    fn silu_mul(&mut self, gate_up: &Self::Activations, out: &mut Self::Activations);

    /// Multiplies `x` by the transpose of `head`, in f32: the logits, by which tokens are chosen.
    fn logits(&mut self, x: &Self::Activations, head: &Self::Matrix, out: &mut Self::Activations);

    /// Takes the last rows of the chunks that want logits.
    fn last_rows(&mut self, x: &Self::Activations, out: &mut Self::Activations);

    /// Takes the last rows of the chunks that want their hidden states.
    fn hidden_rows(&mut self, x: &Self::Activations, out: &mut Self::Activations);
}
