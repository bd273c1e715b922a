//! A multi-layer perceptron with AdamW. Activations and gradients are allocated anew in each step, as a tensor library
//! does; weights and the optimizer's state stay.

use std::collections::HashMap;
use std::sync::Arc;

use gpucache::cudarc::cublas::sys::cublasOperation_t::{self, CUBLAS_OP_N, CUBLAS_OP_T};
use gpucache::cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use gpucache::cudarc::driver::{CudaFunction, CudaModule, CudaStream, DevicePtr, DeviceSlice, PushKernelArg};

use super::common::gpu::elements;
use super::memory::{Failure, Memory};

const KERNELS: [&str; 5] = ["bias_relu", "relu_backward", "cross_entropy", "column_sums", "adamw"];
const RATE: f32 = 1e-3;

struct Layer<B> {
    inputs: usize,
    outputs: usize,
    weight: Parameter<B>,
    bias: Parameter<B>,
}

struct Parameter<B> {
    value: B,
    mean: B,
    variance: B,
}

pub(crate) struct Mlp<'m, M: Memory> {
    memory: &'m M,
    stream: Arc<CudaStream>,
    blas: CudaBlas,
    kernels: HashMap<&'static str, CudaFunction>,
    layers: Vec<Layer<M::Buffer>>,
    steps: i32,
}

/// One stream does everything, so that the address alone is a safe argument.
fn address(buffer: &impl DevicePtr<f32>) -> u64 {
    buffer.device_ptr(buffer.stream()).0
}

impl<'m, M: Memory> Mlp<'m, M> {
    pub(crate) fn new(
        memory: &'m M,
        stream: &Arc<CudaStream>,
        module: &Arc<CudaModule>,
        sizes: &[usize],
    ) -> Result<Self, Failure> {
        let mut kernels = HashMap::new();
        for name in KERNELS {
            kernels.insert(name, module.load_function(name)?);
        }
        let mut random = 1_u32;
        let mut layers = Vec::new();
        for pair in sizes.windows(2) {
            let (inputs, outputs) = (pair[0], pair[1]);
            let bound = (6.0 / inputs as f32).sqrt();
            let weights: Vec<f32> = (0..inputs * outputs).map(|_| bound * uniform(&mut random)).collect();
            let weight = Parameter::new(memory, stream, &weights)?;
            let bias = Parameter::new(memory, stream, &vec![0.0; outputs])?;
            layers.push(Layer { inputs, outputs, weight, bias });
        }
        let blas = CudaBlas::new(Arc::clone(stream))?;
        Ok(Mlp { memory, stream: Arc::clone(stream), blas, kernels, layers, steps: 0 })
    }

    /// Forward, backward, update. `between` is called where the most memory is in use. The losses of the samples.
    pub(crate) fn step(
        &mut self,
        samples: &[f32],
        labels: &[u32],
        between: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<M::Buffer, Failure> {
        let rows = labels.len();
        let mut activations = vec![self.upload(samples)?];
        for (index, layer) in self.layers.iter().enumerate() {
            let relu = index + 1 < self.layers.len();
            let output = self.forward(layer, &activations[index], rows, relu)?;
            activations.push(output);
        }
        let (mut gradient, loss) = self.loss(&activations[self.layers.len()], labels)?;
        between()?;
        self.steps += 1;
        for index in (0..self.layers.len()).rev() {
            let output = activations.pop();
            if let Some(output) = output.filter(|_| index + 1 < self.layers.len()) {
                self.relu_backward(&mut gradient, &output)?;
            }
            gradient = self.backward(index, &activations[index], &gradient, rows)?;
        }
        Ok(loss)
    }

    fn upload(&self, host: &[f32]) -> Result<M::Buffer, Failure> {
        let mut buffer = self.memory.alloc(host.len())?;
        self.stream.memcpy_htod(host, &mut buffer)?;
        Ok(buffer)
    }

    fn forward(
        &self,
        layer: &Layer<M::Buffer>,
        input: &M::Buffer,
        rows: usize,
        relu: bool,
    ) -> Result<M::Buffer, Failure> {
        let mut output = self.memory.alloc(rows * layer.outputs)?;
        // y = x wT, in cuBLAS's column-major eyes yT = w xT.
        let shape = (layer.outputs, rows, layer.inputs);
        self.gemm(
            (CUBLAS_OP_T, CUBLAS_OP_N),
            shape,
            (layer.inputs, layer.inputs),
            (&layer.weight.value, input),
            &mut output,
        )?;
        let (y, bias) = (address(&output), address(&layer.bias.value));
        let (rows, columns, relu) = (rows as u64, layer.outputs as u64, i32::from(relu));
        let mut launch = self.stream.launch_builder(&self.kernels["bias_relu"]);
        launch.arg(&y).arg(&bias).arg(&rows).arg(&columns).arg(&relu);
        // SAFETY: the kernel's arguments; `output` has rows x columns elements.
        unsafe { launch.launch(elements(output.len())) }?;
        Ok(output)
    }

    fn loss(&self, logits: &M::Buffer, labels: &[u32]) -> Result<(M::Buffer, M::Buffer), Failure> {
        // Labels travel as the bits of floats, to need one kind of buffer only.
        let bits: Vec<f32> = labels.iter().map(|&label| f32::from_bits(label)).collect();
        let labels_there = self.upload(&bits)?;
        let (gradient, loss) = (self.memory.alloc(logits.len())?, self.memory.alloc(labels.len())?);
        let arguments = [address(logits), address(&labels_there), address(&gradient), address(&loss)];
        let (rows, columns) = (labels.len() as u64, (logits.len() / labels.len()) as u64);
        let mut launch = self.stream.launch_builder(&self.kernels["cross_entropy"]);
        for argument in &arguments {
            launch.arg(argument);
        }
        launch.arg(&rows).arg(&columns);
        // SAFETY: the kernel's arguments and sizes.
        unsafe { launch.launch(elements(labels.len())) }?;
        Ok((gradient, loss))
    }

    fn relu_backward(&self, gradient: &mut M::Buffer, output: &M::Buffer) -> Result<(), Failure> {
        let (g, y, n) = (address(gradient), address(output), output.len() as u64);
        let mut launch = self.stream.launch_builder(&self.kernels["relu_backward"]);
        launch.arg(&g).arg(&y).arg(&n);
        // SAFETY: both have n elements.
        unsafe { launch.launch(elements(output.len())) }?;
        Ok(())
    }

    /// Updates a layer; the answer is the gradient of its input.
    fn backward(
        &mut self,
        index: usize,
        input: &M::Buffer,
        gradient: &M::Buffer,
        rows: usize,
    ) -> Result<M::Buffer, Failure> {
        let (inputs, outputs) = (self.layers[index].inputs, self.layers[index].outputs);
        let mut of_weight = self.memory.alloc(inputs * outputs)?;
        let shape = (inputs, outputs, rows);
        self.gemm((CUBLAS_OP_N, CUBLAS_OP_T), shape, (inputs, outputs), (input, gradient), &mut of_weight)?;

        let of_bias = self.memory.alloc(outputs)?;
        let (g, sums, columns) = (address(gradient), address(&of_bias), outputs as u64);
        let mut launch = self.stream.launch_builder(&self.kernels["column_sums"]);
        let many = rows as u64;
        launch.arg(&g).arg(&sums).arg(&many).arg(&columns);
        // SAFETY: the gradient has rows x columns elements, the sums have columns.
        unsafe { launch.launch(elements(outputs)) }?;

        let mut of_input = self.memory.alloc(rows * inputs)?;
        let shape = (inputs, rows, outputs);
        let weight = &self.layers[index].weight.value;
        self.gemm((CUBLAS_OP_N, CUBLAS_OP_N), shape, (inputs, outputs), (weight, gradient), &mut of_input)?;
        self.update(&self.layers[index].weight, &of_weight)?;
        self.update(&self.layers[index].bias, &of_bias)?;
        Ok(of_input)
    }

    fn update(&self, parameter: &Parameter<M::Buffer>, gradient: &M::Buffer) -> Result<(), Failure> {
        let n = gradient.len() as u64;
        let left = [1.0 - 0.9_f32.powi(self.steps), 1.0 - 0.999_f32.powi(self.steps)];
        let arguments = [&parameter.value, gradient, &parameter.mean, &parameter.variance].map(address);
        let mut launch = self.stream.launch_builder(&self.kernels["adamw"]);
        for argument in &arguments {
            launch.arg(argument);
        }
        launch.arg(&n).arg(&RATE).arg(&left[0]).arg(&left[1]);
        // SAFETY: all four have n elements.
        unsafe { launch.launch(elements(gradient.len())) }?;
        Ok(())
    }

    /// `product` (m by n) = `left` (m by k) times `right` (k by n), column-major.
    fn gemm(
        &self,
        (transa, transb): (cublasOperation_t, cublasOperation_t),
        (m, n, k): (usize, usize, usize),
        (lda, ldb): (usize, usize),
        (left, right): (&M::Buffer, &M::Buffer),
        product: &mut M::Buffer,
    ) -> Result<(), Failure> {
        let [m, n, k, lda, ldb] = [m, n, k, lda, ldb].map(|size| size as i32);
        let config = GemmConfig { transa, transb, m, n, k, alpha: 1.0_f32, lda, ldb, beta: 0.0, ldc: m };
        // SAFETY: the callers' buffers have these shapes.
        unsafe { self.blas.gemm(config, left, right, product) }?;
        Ok(())
    }
}

impl<B: DevicePtr<f32> + gpucache::cudarc::driver::DevicePtrMut<f32>> Parameter<B> {
    fn new<M: Memory<Buffer = B>>(
        memory: &M,
        stream: &Arc<CudaStream>,
        host: &[f32],
    ) -> Result<Self, Failure> {
        let filled = |host: &[f32]| -> Result<B, Failure> {
            let mut buffer = memory.alloc(host.len())?;
            stream.memcpy_htod(host, &mut buffer)?;
            Ok(buffer)
        };
        let zeros = vec![0.0; host.len()];
        Ok(Parameter { value: filled(host)?, mean: filled(&zeros)?, variance: filled(&zeros)? })
    }
}

/// A number in -1 to 1.
pub(crate) fn uniform(state: &mut u32) -> f32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    (*state as f32 / u32::MAX as f32) * 2.0 - 1.0
}
