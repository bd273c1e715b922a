// Matrices are row-major, one sample per row.
typedef unsigned long long u64;
__device__ u64 index() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }

// x += bias, then ReLU unless it is the last layer.
extern "C" __global__ void bias_relu(float *x, const float *bias, u64 rows, u64 columns, int relu) {
    u64 i = index();
    if (i >= rows * columns) return;
    float v = x[i] + bias[i % columns];
    x[i] = relu && v < 0 ? 0 : v;
}

// Gradient of ReLU, by its output.
extern "C" __global__ void relu_backward(float *gradient, const float *output, u64 n) {
    u64 i = index();
    if (i < n && output[i] <= 0) gradient[i] = 0;
}

// One thread per sample: loss and gradient of the logits.
extern "C" __global__ void cross_entropy(const float *logits, const unsigned *labels, float *gradient, float *loss,
                                         u64 rows, u64 columns) {
    u64 row = index();
    if (row >= rows) return;
    const float *x = logits + row * columns;
    float top = x[0], sum = 0;
    for (u64 c = 1; c < columns; c++) top = fmaxf(top, x[c]);
    for (u64 c = 0; c < columns; c++) sum += expf(x[c] - top);
    for (u64 c = 0; c < columns; c++)
        gradient[row * columns + c] = (expf(x[c] - top) / sum - (c == labels[row])) / rows;
    loss[row] = logf(sum) + top - x[labels[row]];
}

// One thread per column.
extern "C" __global__ void column_sums(const float *x, float *sums, u64 rows, u64 columns) {
    u64 column = index();
    if (column >= columns) return;
    float sum = 0;
    for (u64 row = 0; row < rows; row++) sum += x[row * columns + column];
    sums[column] = sum;
}

extern "C" __global__ void adamw(float *weight, const float *gradient, float *mean, float *variance, u64 n, float rate,
                                 float mean_left, float variance_left) {
    u64 i = index();
    if (i >= n) return;
    float g = gradient[i];
    float m = mean[i] = 0.9f * mean[i] + 0.1f * g;
    float v = variance[i] = 0.999f * variance[i] + 0.001f * g * g;
    weight[i] -= rate * (m / mean_left / (sqrtf(v / variance_left) + 1e-8f) + 0.01f * weight[i]);
}
