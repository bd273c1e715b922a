//! The allocations of a GPT-2 style transformer under AdamW: what an eager framework asks of its allocator, in order.
//!
//! An operator's result is kept for the backward pass where a real one keeps it, and dies otherwise as soon as the
//! next operator has read it. Attention is the fused kind (it keeps one number per head and token, not the scores).

use gpucache::{Allocation, Allocator, Result};

/// The model and its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) vocabulary: usize,
    pub(crate) sequence: usize,
    pub(crate) batch: usize,
}

/// How the model is trained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    /// Keep only each layer's input in the forward pass and compute the rest again in the backward pass.
    pub(crate) checkpointing: bool,
    /// Split the batch, and add the gradients of the parts up.
    pub(crate) micro_batches: usize,
    /// 16-bit activations and weight copies; parameters, gradients and the residual stream stay in float32.
    pub(crate) mixed_precision: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Norm,
    Linear,
    Attention,
    Gelu,
    Dropout,
    /// Adds the branch to the residual stream.
    Add,
}

/// One operator of a layer; `width` is its result in units of the hidden size, per token.
#[derive(Clone, Copy)]
struct Operator {
    kind: Kind,
    input: usize,
    width: usize,
}

const fn operator(kind: Kind, input: usize, width: usize) -> Operator {
    Operator { kind, input, width }
}

/// A layer is two branches of this many operators, each added to the residual stream.
const BRANCH: usize = 6;

const LAYER: [Operator; 2 * BRANCH] = [
    operator(Kind::Norm, 1, 1),
    operator(Kind::Linear, 1, 3), // query, key, value
    operator(Kind::Attention, 3, 1),
    operator(Kind::Linear, 1, 1),
    operator(Kind::Dropout, 1, 1),
    operator(Kind::Add, 1, 1),
    operator(Kind::Norm, 1, 1),
    operator(Kind::Linear, 1, 4),
    operator(Kind::Gelu, 4, 4),
    operator(Kind::Linear, 4, 1),
    operator(Kind::Dropout, 1, 1),
    operator(Kind::Add, 1, 1),
];

/// Whether the operator after this one needs this one's result again in the backward pass.
fn result_is_saved(position: usize) -> bool {
    LAYER.get(position + 1).is_some_and(|next| !matches!(next.kind, Kind::Dropout | Kind::Add))
}

impl Operator {
    /// Elements of its parameters: a weight matrix and a vector, or two vectors.
    fn parameters(self, hidden: usize) -> Vec<usize> {
        match self.kind {
            Kind::Norm => vec![hidden, hidden],
            Kind::Linear => vec![self.input * self.width * hidden * hidden, self.width * hidden],
            _ => Vec::new(),
        }
    }
}

/// One parameter in float32 with what training hangs on it.
struct Parameter {
    elements: usize,
    _weight: Allocation,
    gradient: Option<Allocation>,
    moments: Option<[Allocation; 2]>,
}

/// What the backward pass of one operator reads.
struct Saved {
    _tensors: Vec<Allocation>,
}

/// What a forward pass leaves for the backward pass.
pub(crate) struct Activations {
    /// The input of each layer.
    inputs: Vec<Allocation>,
    /// Per layer; empty with checkpointing.
    layers: Vec<Vec<Saved>>,
    /// Of the last norm and the loss.
    head: Vec<Allocation>,
}

pub(crate) struct Transformer<'a> {
    gpu: &'a Allocator,
    shape: Shape,
    variant: Variant,
    /// Token (shared with the output layer) and position embeddings, and the last norm.
    outer: Vec<Parameter>,
    /// By layer and operator.
    layers: Vec<Vec<Vec<Parameter>>>,
}

impl<'a> Transformer<'a> {
    pub(crate) fn load(gpu: &'a Allocator, shape: Shape, variant: Variant) -> Result<Self> {
        let load = |elements: usize| -> Result<Parameter> {
            Ok(Parameter { elements, _weight: gpu.alloc(4 * elements)?, gradient: None, moments: None })
        };
        let load_all = |sizes: Vec<usize>| sizes.into_iter().map(load).collect::<Result<Vec<_>>>();
        let hidden = shape.hidden;
        let outer = load_all(vec![shape.vocabulary * hidden, shape.sequence * hidden, hidden, hidden])?;
        let layers = (0..shape.layers)
            .map(|_| LAYER.iter().map(|operator| load_all(operator.parameters(hidden))).collect())
            .collect::<Result<_>>()?;
        Ok(Transformer { gpu, shape, variant, outer, layers })
    }

    /// Token numbers and targets of the whole batch, 64 bits each.
    pub(crate) fn load_batch(&self) -> Result<[Allocation; 2]> {
        let bytes = 8 * self.shape.batch * self.shape.sequence;
        Ok([self.gpu.alloc(bytes)?, self.gpu.alloc(bytes)?])
    }

    /// Forward pass of one micro-batch, loss included.
    pub(crate) fn forward(&self) -> Result<Activations> {
        let mut inputs = vec![self.residual()?];
        let mut layers = Vec::new();
        for _ in 0..self.shape.layers {
            let (saved, output) = self.forward_layer()?;
            if !self.variant.checkpointing {
                layers.push(saved);
            }
            inputs.push(output);
        }
        Ok(Activations { inputs, layers, head: self.forward_head()? })
    }

    /// Backward pass of one micro-batch; gradients are added to those that are there.
    pub(crate) fn backward(&mut self, activations: Activations) -> Result<()> {
        let Activations { mut inputs, mut layers, head } = activations;
        let mut gradient = self.backward_head(head)?;
        inputs.pop();
        for layer in (0..self.shape.layers).rev() {
            let saved = match layers.pop() {
                Some(saved) => saved,
                None => self.forward_layer()?.0,
            };
            gradient = self.backward_layer(layer, saved, gradient)?;
            inputs.pop();
        }
        add_gradients(self.gpu, &mut self.outer[..2])
    }

    /// AdamW, one parameter after the other; the two moments are created by the first step.
    pub(crate) fn optimizer_step(&mut self) -> Result<()> {
        let gpu = self.gpu;
        for parameter in self.parameters() {
            let bytes = 4 * parameter.elements;
            if parameter.moments.is_none() {
                parameter.moments = Some([gpu.alloc(bytes)?, gpu.alloc(bytes)?]);
            }
            let _denominator = gpu.alloc(bytes)?;
        }
        Ok(())
    }

    pub(crate) fn zero_gradients(&mut self) {
        self.parameters().for_each(|parameter| parameter.gradient = None);
    }

    fn parameters(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.outer.iter_mut().chain(self.layers.iter_mut().flatten().flatten())
    }

    fn forward_layer(&self) -> Result<(Vec<Saved>, Allocation)> {
        let mut saved = Vec::with_capacity(LAYER.len());
        let mut passing = None; // lives until the next operator has read it
        for (position, operator) in LAYER[..LAYER.len() - 1].iter().enumerate() {
            let mut tensors = self.saved_beside_result(*operator)?;
            let result = self.result(*operator)?;
            if result_is_saved(position) {
                tensors.push(result);
                passing = None;
            } else {
                passing = Some(result);
            }
            saved.push(Saved { _tensors: tensors });
        }
        let output = self.residual()?;
        drop(passing);
        Ok((saved, output))
    }

    /// Backward through both branches of a layer, the last one first.
    fn backward_layer(
        &mut self,
        layer: usize,
        mut saved: Vec<Saved>,
        output: Allocation,
    ) -> Result<Allocation> {
        let mlp = saved.split_off(BRANCH);
        let between = self.backward_branch(layer, BRANCH, mlp, output)?;
        self.backward_branch(layer, 0, saved, between)
    }

    /// The gradient of the sum serves the branch's end and, later, the residual stream before the branch.
    fn backward_branch(
        &mut self,
        layer: usize,
        start: usize,
        mut saved: Vec<Saved>,
        of_sum: Allocation,
    ) -> Result<Allocation> {
        let mut gradient = None;
        for position in (start..start + BRANCH - 1).rev() {
            let operator = LAYER[position];
            let elements = self.tokens() * operator.input * self.shape.hidden;
            let of_input = self.gpu.alloc(self.element_bytes(operator.kind) * elements)?;
            add_gradients(self.gpu, &mut self.layers[layer][position])?;
            gradient = Some(of_input);
            saved.truncate(position - start);
        }
        let of_stream = self.residual()?;
        drop((gradient, of_sum));
        Ok(of_stream)
    }

    /// Last norm, logits and cross entropy. The logits die; their log-softmax (float32) is kept.
    fn forward_head(&self) -> Result<Vec<Allocation>> {
        let mut saved = vec![self.result(LAYER[0])?];
        if self.variant.mixed_precision {
            saved.push(self.gpu.alloc(2 * self.shape.vocabulary * self.shape.hidden)?);
        }
        let elements = self.tokens() * self.shape.vocabulary;
        let _logits = self.gpu.alloc(self.element_bytes(Kind::Linear) * elements)?;
        let _in_float32 =
            if self.variant.mixed_precision { Some(self.gpu.alloc(4 * elements)?) } else { None };
        saved.push(self.gpu.alloc(4 * elements)?);
        saved.push(self.gpu.alloc(4)?);
        Ok(saved)
    }

    fn backward_head(&mut self, saved: Vec<Allocation>) -> Result<Allocation> {
        let elements = self.tokens() * self.shape.vocabulary;
        let of_logits = self.gpu.alloc(4 * elements)?;
        drop(saved);
        let in_16_bits =
            if self.variant.mixed_precision { Some(self.gpu.alloc(2 * elements)?) } else { None };
        add_gradients(self.gpu, &mut self.outer[..1])?;
        let of_norm = self.result(LAYER[0])?;
        drop((of_logits, in_16_bits));
        add_gradients(self.gpu, &mut self.outer[2..])?;
        let gradient = self.residual()?;
        drop(of_norm);
        Ok(gradient)
    }

    /// A tensor of the residual stream.
    fn residual(&self) -> Result<Allocation> {
        self.gpu.alloc(4 * self.tokens() * self.shape.hidden)
    }

    fn result(&self, operator: Operator) -> Result<Allocation> {
        self.gpu.alloc(self.element_bytes(operator.kind) * self.tokens() * operator.width * self.shape.hidden)
    }

    /// Row statistics, masks and 16-bit weights.
    fn saved_beside_result(&self, operator: Operator) -> Result<Vec<Allocation>> {
        let tokens = self.tokens();
        let sizes = match operator.kind {
            Kind::Norm => vec![4 * tokens, 4 * tokens],
            Kind::Attention => vec![4 * tokens * self.shape.heads],
            Kind::Dropout => vec![tokens * self.shape.hidden],
            Kind::Linear if self.variant.mixed_precision => {
                operator.parameters(self.shape.hidden).into_iter().map(|elements| 2 * elements).collect()
            }
            _ => Vec::new(),
        };
        sizes.into_iter().map(|bytes| self.gpu.alloc(bytes)).collect()
    }

    fn element_bytes(&self, kind: Kind) -> usize {
        if self.variant.mixed_precision && kind != Kind::Add { 2 } else { 4 }
    }

    /// Tokens of one micro-batch.
    fn tokens(&self) -> usize {
        self.shape.batch / self.variant.micro_batches * self.shape.sequence
    }
}

/// The backward pass of one operator gives a fresh gradient per parameter: it becomes the gradient, or is added to it.
fn add_gradients(gpu: &Allocator, parameters: &mut [Parameter]) -> Result<()> {
    for parameter in parameters {
        let fresh = gpu.alloc(4 * parameter.elements)?;
        parameter.gradient.get_or_insert(fresh);
    }
    Ok(())
}
