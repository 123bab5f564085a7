//! The computation of a model like Llama, once for every device.
//!
//! A backend lays out its step, makes its [`Ops`] and calls [`forward`]. The weights are of the
//! device's own kind, made from the tensors that [`super::weights`] finds.
//!
//! # Not here
//! Arithmetic (the implementations of [`Ops`]), and the placing of tokens in blocks.

use super::ops::Ops;

/// Weights of a model: matrices as `M`, vectors as `V`.
#[derive(Debug)]
pub struct Llama<M, V> {
    /// The embedding table, `[vocab_size, hidden_size]`.
    pub embedding: M,
    /// Layers in order; never empty.
    pub layers: Vec<Layer<M, V>>,
    /// The norm after the last layer.
    pub norm: V,
    /// The projection to logits, `[vocab_size, hidden_size]`; absent where the embedding serves for
    /// it.
    pub head: Option<M>,
}

/// Weights of one layer. Projections of the same input are one matrix.
#[derive(Debug)]
pub struct Layer<M, V> {
    /// The norm before attention.
    pub attention_norm: V,
    /// Queries, keys and values: `[q_size + 2 * kv_size, hidden_size]`.
    pub qkv: Linear<M, V>,
    /// The norms of queries and keys, where heads have them.
    pub head_norms: Option<HeadNorms<V>>,
    /// From attention to the residual stream: `[hidden_size, q_size]`.
    pub output: Linear<M, V>,
    /// The norm before the MLP.
    pub mlp_norm: V,
    /// Gate and up: `[2 * intermediate_size, hidden_size]`.
    pub gate_up: Linear<M, V>,
    /// From the MLP to the residual stream: `[hidden_size, intermediate_size]`.
    pub down: Linear<M, V>,
}

/// The norms of one head's queries and keys, the same for all heads: `head_dim` numbers each.
#[derive(Clone, Debug)]
pub struct HeadNorms<V> {
    /// The norm of queries.
    pub query: V,
    /// The norm of keys.
    pub key: V,
}

/// A projection: a matrix, and perhaps a bias.
#[derive(Debug)]
pub struct Linear<M, V> {
    /// The matrix, `[outputs, inputs]`.
    pub weight: M,
    /// The number added to each output.
    pub bias: Option<V>,
}

/// Makes the weights of a model of its own kind, each of another one.
pub trait WeightsMaker<M, V> {
    /// A matrix of this kind.
    type Matrix;
    /// A vector of this kind.
    type Vector;
    /// The reason why one cannot be made.
    type Error;

    /// Makes a matrix.
    ///
    /// # Errors
    /// If it cannot be made.
    fn matrix(&mut self, matrix: &M) -> Result<Self::Matrix, Self::Error>;

    /// Makes a vector.
    ///
    /// # Errors
    /// If it cannot be made.
    fn vector(&mut self, vector: &V) -> Result<Self::Vector, Self::Error>;
}

impl<M, V> Llama<M, V> {
    /// Makes the same model of another kind.
    ///
    /// # Errors
    /// The maker's first.
    pub fn made<K: WeightsMaker<M, V>>(
        &self,
        by: &mut K,
    ) -> Result<Llama<K::Matrix, K::Vector>, K::Error> {
        Ok(Llama {
            embedding: by.matrix(&self.embedding)?,
            layers: {
                let layers = self.layers.iter().map(|layer| layer.made(by));
                layers.collect::<Result<_, _>>()?
            },
            norm: by.vector(&self.norm)?,
            head: match &self.head {
                None => None,
                Some(head) => Some(by.matrix(head)?),
            },
        })
    }

    /// All matrices, in the order of [`Self::made`].
    pub fn matrices(&self) -> impl Iterator<Item = &M> {
        let of_layers = self.layers.iter().flat_map(|layer| {
            let projections = [&layer.qkv, &layer.output, &layer.gate_up, &layer.down];
            projections.map(|linear| &linear.weight)
        });
        [&self.embedding]
            .into_iter()
            .chain(of_layers)
            .chain(&self.head)
    }

    /// All vectors, in the order of [`Self::made`].
    pub fn vectors(&self) -> impl Iterator<Item = &V> {
        let of_layers = self.layers.iter().flat_map(Layer::vectors);
        of_layers.chain([&self.norm])
    }
}

impl<M, V> Layer<M, V> {
    fn made<K: WeightsMaker<M, V>>(
        &self,
        by: &mut K,
    ) -> Result<Layer<K::Matrix, K::Vector>, K::Error> {
        Ok(Layer {
            attention_norm: by.vector(&self.attention_norm)?,
            qkv: self.qkv.made(by)?,
            head_norms: match &self.head_norms {
                None => None,
                Some(HeadNorms { query, key }) => Some(HeadNorms {
                    query: by.vector(query)?,
                    key: by.vector(key)?,
                }),
            },
            output: self.output.made(by)?,
            mlp_norm: by.vector(&self.mlp_norm)?,
            gate_up: self.gate_up.made(by)?,
            down: self.down.made(by)?,
        })
    }

    fn vectors(&self) -> impl Iterator<Item = &V> {
        let norms = self.head_norms.iter();
        let norms = norms.flat_map(|HeadNorms { query, key }| [query, key]);
        [&self.attention_norm]
            .into_iter()
            .chain(&self.qkv.bias)
            .chain(norms)
            .chain(&self.output.bias)
            .chain([&self.mlp_norm])
            .chain(&self.gate_up.bias)
            .chain(&self.down.bias)
    }
}

impl<M, V> Linear<M, V> {
    fn made<K: WeightsMaker<M, V>>(
        &self,
        by: &mut K,
    ) -> Result<Linear<K::Matrix, K::Vector>, K::Error> {
        Ok(Linear {
            weight: by.matrix(&self.weight)?,
            bias: match &self.bias {
                None => None,
                Some(bias) => Some(by.vector(bias)?),
            },
        })
    }
}

/// Values computed on the way, one row per token of the step. Kept between steps for their memory.
#[derive(Debug, Default)]
pub struct Activations<A> {
    hidden: A,
    normed: A,
    qkv: A,
    attended: A,
    delta: A,
    gate_up: A,
    gated: A,
    last: A,
    /// Logits, the result: a row for each chunk that wants one.
    pub logits: A,
    /// Hidden states, the other result: a row for each chunk that wants its own.
    pub hidden_states: A,
}

impl<A> Activations<A> {
    /// All of them, in any order.
    pub fn all(&self) -> [&A; 10] {
        [
            &self.hidden,
            &self.normed,
            &self.qkv,
            &self.attended,
            &self.delta,
            &self.gate_up,
            &self.gated,
            &self.last,
            &self.logits,
            &self.hidden_states,
        ]
    }
}

/// Runs the step that `ops` was made for: writes its keys and values, and leaves its logits in
/// `at.logits` and its hidden states in `at.hidden_states`.
pub fn forward<O: Ops>(
    ops: &mut O,
    model: &Llama<O::Matrix, O::Vector>,
    at: &mut Activations<O::Activations>,
) {
    ops.embed(&model.embedding, &mut at.hidden);
    ops.rmsnorm(&at.hidden, &model.layers[0].attention_norm, &mut at.normed);
    for (index, layer) in model.layers.iter().enumerate() {
        project(ops, &at.normed, &layer.qkv, &mut at.qkv);
        if let Some(norms) = &layer.head_norms {
            ops.norm_heads(&mut at.qkv, norms);
        }
        ops.rope_write_kv(index, &mut at.qkv);
        ops.attention(index, &at.qkv, &mut at.attended);
        project(ops, &at.attended, &layer.output, &mut at.delta);
        ops.sum(&mut at.delta);
        ops.add_rmsnorm(&at.delta, &mut at.hidden, &layer.mlp_norm, &mut at.normed);
        project(ops, &at.normed, &layer.gate_up, &mut at.gate_up);
        ops.silu_mul(&at.gate_up, &mut at.gated);
        project(ops, &at.gated, &layer.down, &mut at.delta);
        ops.sum(&mut at.delta);
        let next = model.layers.get(index + 1);
        let norm = next.map_or(&model.norm, |next| &next.attention_norm);
        ops.add_rmsnorm(&at.delta, &mut at.hidden, norm, &mut at.normed);
    }
    ops.hidden_rows(&at.normed, &mut at.hidden_states);
    ops.last_rows(&at.normed, &mut at.last);
    let head = model.head.as_ref().unwrap_or(&model.embedding);
    ops.logits(&at.last, head, &mut at.logits);
}

fn project<O: Ops>(
    ops: &mut O,
    x: &O::Activations,
    linear: &Linear<O::Matrix, O::Vector>,
    out: &mut O::Activations,
) {
    ops.linear(x, &linear.weight, linear.bias.as_ref(), out);
}
