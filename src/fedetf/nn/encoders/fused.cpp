// Training kernels for channels_last float32 images on a CPU: what stands around the convolutions, in as few passes over
// memory as it takes. A tensor [N, C, H, W] in channels_last is a matrix of N*H*W rows of C channels; C is a multiple of 16.
#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

static const int64_t BLOCK = 256;  // rows that are summed in single precision before going into a double

static inline vec where_positive(vec sign, vec v) { return (vec)((mask)v & (mask)(sign > 0)); }

// out = norm(x) [+ residual] [then ReLU]; also the batch's mean and 1/std, and the running statistics moved.
extern "C" void norm_forward(const float *x, const float *residual, float *out, int64_t rows, int64_t channels,
                             const float *weight, const float *bias, float *running_mean, float *running_var,
                             double momentum, double eps, float *mean, float *inverse_std, int relu) {
  const int64_t C = channels;
  std::vector<double> sum(C), squares(C);
  std::vector<float> pivot(x, x + C), scale(C), shift(C);  // sums are of x - pivot: nothing large cancels out
  for (int64_t r = 0; r < rows; r += BLOCK) {
    const int64_t n = std::min(BLOCK, rows - r);
    for (int64_t c = 0; c < C; c += STRIP) {
      vec s[PAIR] = {}, q[PAIR] = {}, p[PAIR];
      for (int j = 0; j < PAIR; j++) p[j] = load(&pivot[c + LANES * j]);
      const float *at = x + r * C + c;
      for (int64_t i = 0; i < n; i++, at += C)
        for (int j = 0; j < PAIR; j++) {
          const vec d = load(at + LANES * j) - p[j];
          s[j] += d;
          q[j] += d * d;
        }
      for (int k = 0; k < STRIP; k++) {
        sum[c + k] += s[k / LANES][k % LANES];
        squares[c + k] += q[k / LANES][k % LANES];
      }
    }
  }
  for (int64_t c = 0; c < C; c++) {
    const double apart = sum[c] / rows, var = std::max(0.0, squares[c] / rows - apart * apart);
    mean[c] = apart + pivot[c];
    inverse_std[c] = 1 / std::sqrt(var + eps);
    scale[c] = weight[c] * inverse_std[c];
    shift[c] = bias[c] - (double)mean[c] * scale[c];
    running_mean[c] += momentum * (mean[c] - running_mean[c]);
    running_var[c] += momentum * (var * rows / (rows - 1) - running_var[c]);
  }
  const vec zero = {};
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < C; c += LANES) {
      const int64_t at = r * C + c;
      vec v = load(x + at) * load(&scale[c]) + load(&shift[c]);
      if (residual) v += load(residual + at);
      if (relu) v = v < 0 ? zero : v;  // NaN stays NaN
      store(out + at, v);
    }
}

// Gradients of norm_forward from that of its output. RELU says where the sign before the ReLU comes from: 0 there is none,
// 1 from x again, 2 from the output (with a residual); then the gradient behind the ReLU, which is the residual's, is kept.
template <int RELU>
static void backward(const float *grad, const float *x, const float *out, float *behind, float *grad_x, int64_t rows,
                     int64_t C, const float *weight, const float *bias, const float *mean, const float *inverse_std,
                     float *grad_weight, float *grad_bias) {
  std::vector<double> sum(C), product(C);
  std::vector<float> scale(C), shift(C), slope(C), offset(C);
  for (int64_t c = 0; c < C; c++) {
    scale[c] = weight[c] * inverse_std[c];
    shift[c] = bias[c] - (double)mean[c] * scale[c];
  }
  for (int64_t r = 0; r < rows; r += BLOCK) {
    const int64_t n = std::min(BLOCK, rows - r);
    for (int64_t c = 0; c < C; c += STRIP) {
      vec s[PAIR] = {}, q[PAIR] = {}, m[PAIR], a[PAIR], b[PAIR];
      for (int j = 0; j < PAIR; j++) {
        m[j] = load(&mean[c + LANES * j]);
        a[j] = load(&scale[c + LANES * j]);
        b[j] = load(&shift[c + LANES * j]);
      }
      int64_t at = r * C + c;
      for (int64_t i = 0; i < n; i++, at += C)
        for (int j = 0; j < PAIR; j++) {
          const vec v = load(x + at + LANES * j);
          vec g = load(grad + at + LANES * j);
          if (RELU == 1) g = where_positive(v * a[j] + b[j], g);
          if (RELU == 2) {
            g = where_positive(load(out + at + LANES * j), g);
            store(behind + at + LANES * j, g);
          }
          s[j] += g;
          q[j] += g * (v - m[j]);
        }
      for (int k = 0; k < STRIP; k++) {
        sum[c + k] += s[k / LANES][k % LANES];
        product[c + k] += q[k / LANES][k % LANES];
      }
    }
  }
  // dx = scale (g - mean g - (x - mean) / var * mean(g (x - mean))) = scale g + slope x + offset
  for (int64_t c = 0; c < C; c++) {
    grad_bias[c] = sum[c];
    grad_weight[c] = product[c] * inverse_std[c];
    const double k = -(double)scale[c] * inverse_std[c] * inverse_std[c] * product[c] / rows;
    slope[c] = k;
    offset[c] = -scale[c] * sum[c] / rows - k * mean[c];
  }
  const float *from = RELU == 2 ? behind : grad;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < C; c += LANES) {
      const int64_t at = r * C + c;
      const vec v = load(x + at), a = load(&scale[c]);
      vec g = load(from + at);
      if (RELU == 1) g = where_positive(v * a + load(&shift[c]), g);
      store(grad_x + at, a * g + (v * load(&slope[c]) + load(&offset[c])));
    }
}

extern "C" void norm_backward(int relu, const float *grad, const float *x, const float *out, float *behind, float *grad_x,
                              int64_t rows, int64_t channels, const float *weight, const float *bias, const float *mean,
                              const float *inverse_std, float *grad_weight, float *grad_bias) {
  auto *step = relu == 0 ? backward<0> : relu == 1 ? backward<1> : backward<2>;
  step(grad, x, out, behind, grad_x, rows, channels, weight, bias, mean, inverse_std, grad_weight, grad_bias);
}
