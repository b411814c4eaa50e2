// Training kernels for channels_last float32 images on a CPU: what stands around the convolutions, in as few passes over
// memory as it takes. A tensor [N, C, H, W] in channels_last is a matrix of N*H*W rows of C channels; C is a multiple of 16.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

typedef float vec __attribute__((vector_size(32), aligned(4)));
typedef int32_t mask __attribute__((vector_size(32)));
static const int64_t LANES = 8, STRIP = 16;  // floats in a vector, and in the two of them that go together
static const int64_t BLOCK = 256;            // rows that are summed in single precision before going into a double

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }
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
      vec s[2] = {}, q[2] = {};
      const vec p[2] = {load(&pivot[c]), load(&pivot[c + LANES])};
      const float *at = x + r * C + c;
      for (int64_t i = 0; i < n; i++, at += C)
        for (int j = 0; j < 2; j++) {
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
      vec s[2] = {}, q[2] = {}, m[2], a[2], b[2];
      for (int j = 0; j < 2; j++) {
        m[j] = load(&mean[c + LANES * j]);
        a[j] = load(&scale[c + LANES * j]);
        b[j] = load(&shift[c + LANES * j]);
      }
      int64_t at = r * C + c;
      for (int64_t i = 0; i < n; i++, at += C)
        for (int j = 0; j < 2; j++) {
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

// The gradient of a 3x3 convolution's weight (stride 1, padding 1) as [3, 3, inputs, outputs]: for a few rows of an image
// at a time, all products of a shifted input with the output's gradient, six inputs by sixteen outputs in registers.
extern "C" void weight_gradient(const float *x, const float *grad, float *result, int64_t images, int64_t height,
                                int64_t width, int64_t inputs, int64_t outputs) {
  const int64_t C = inputs, O = outputs, at_once = std::max<int64_t>(1, std::min<int64_t>(height, 128 / width));
  const int64_t row = (width + 2) * C;
  std::vector<float> padded((at_once + 2) * row);
  std::memset(result, 0, 9 * C * O * sizeof(float));
  for (int64_t n = 0; n < images; n++)
    for (int64_t top = 0; top < height; top += at_once) {
      const int64_t lines = std::min(at_once, height - top);
      for (int64_t r = 0; r < lines + 2; r++) {
        const int64_t y = top + r - 1;
        float *line = &padded[r * row];
        if (y < 0 || y >= height)
          std::memset(line, 0, row * sizeof(float));
        else
          std::memcpy(line + C, x + (n * height + y) * width * C, width * C * sizeof(float));
      }
      const float *here = grad + (n * height + top) * width * O;
      for (int64_t ky = 0; ky < 3; ky++)
        for (int64_t o = 0; o < O; o += STRIP)
          for (int64_t m = 0; m < 3 * C; m += 6) {  // kx and input channel together: they lie side by side
            float *to = result + (ky * 3 * C + m) * O + o;
            vec total[6][2];
            for (int i = 0; i < 6; i++) {
              total[i][0] = load(to + i * O);
              total[i][1] = load(to + i * O + LANES);
            }
            for (int64_t r = 0; r < lines; r++) {
              const float *a = &padded[(r + ky) * row + m], *b = here + r * width * O + o;
              for (int64_t w = 0; w < width; w++, a += C, b += O) {
                const vec b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 6
                for (int i = 0; i < 6; i++) {
                  const vec v = a[i] - vec{};  // the scalar in all lanes
                  total[i][0] += v * b0;
                  total[i][1] += v * b1;
                }
              }
            }
            for (int i = 0; i < 6; i++) {
              store(to + i * O, total[i][0]);
              store(to + i * O + LANES, total[i][1]);
            }
          }
    }
}
