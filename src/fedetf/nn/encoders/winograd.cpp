// 3x3 convolutions (stride 1, padding 1) of channels_last float32 images by Winograd's F(2x2, 3x3) (Lavin and Gray, 2016,
// https://arxiv.org/abs/1509.09308): a tile of 2x2 outputs takes 16 products instead of 36,
//
//   y = A' [(G w G') * (B' d B)] A,    dw = G' [sum over tiles (B' d B) * (A g A')] G,
//
// with d the 4x4 inputs of a tile and g its gradient. Over channels these are 16 matrix products, [tiles, C] x [C, O] for
// the outputs and [C, tiles] x [tiles, O] for the weights. G w G' and G' .. G are left to the caller. Height and width are
// even; channels, of inputs and outputs, come in multiples of STRIP.
#include <algorithm>
#include <cstring>
#include <vector>

#include "vectors.h"

static const int POINTS = 16;          // of a transformed tile
static const int64_t ROWS = 8;         // of a matrix product that are summed side by side
static const int64_t WIDE = 2 / PAIR;  // vectors of each: as many as there are registers for
static const int64_t FLOATS = 4096;    // of a block of tiles, for each point: all points together stay in the cache

// The rows of tiles, one below the other through all images, and the block of them that is worked on.
struct Block {
  int64_t height, width, first, rows, room;
  int64_t across() const { return width / 2; }
  int64_t tiles() const { return rows * across(); }
  int64_t plane(int64_t C) const { return room * C + 3 * STRIP; }  // floats of a point; planes begin in other cache sets
  int64_t pixel(int64_t row) const { return 2 * row * width; }     // the first of a row of tiles, of all images
  bool top(int64_t row) const { return row % (height / 2) == 0; }
  bool bottom(int64_t row) const { return (row + 1) % (height / 2) == 0; }
};

// B' d B of each tile, as [points, strips of channels, tiles, STRIP].
static void from_input(const float *x, const Block &b, int64_t C, float *to) {
  static thread_local std::vector<float> zeros;  // beside the image
  zeros.resize(std::max<size_t>(zeros.size(), C));
  const int64_t plane = b.plane(C), strip = b.room * STRIP;
  for (int64_t r = b.first; r < b.first + b.rows; r++)
    for (int64_t t = 0; t < b.across(); t++, to += STRIP) {
      const float *from[4][4];
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
          const bool above = i == 0 && b.top(r), below = i == 3 && b.bottom(r);
          const bool left = j == 0 && t == 0, right = j == 3 && t == b.across() - 1;
          const float *at = x + (b.pixel(r) + (i - 1) * b.width + 2 * t + j - 1) * C;
          from[i][j] = above || below || left || right ? zeros.data() : at;
        }
      for (int64_t c = 0; c < C; c += LANES) {
        vec h[4][4];
        for (int j = 0; j < 4; j++) {
          vec d[4];
          for (int i = 0; i < 4; i++) d[i] = load(from[i][j] + c);
          h[0][j] = d[0] - d[2];
          h[1][j] = d[1] + d[2];
          h[2][j] = d[2] - d[1];
          h[3][j] = d[1] - d[3];
        }
        for (int i = 0; i < 4; i++) {
          float *point = to + 4 * i * plane + c / STRIP * strip + c % STRIP;
          store(point, h[i][0] - h[i][2]);
          store(point + plane, h[i][1] + h[i][2]);
          store(point + 2 * plane, h[i][2] - h[i][1]);
          store(point + 3 * plane, h[i][1] - h[i][3]);
        }
      }
    }
}

// A' m A of each tile, from [points, tiles, O].
static void to_output(const float *from, const Block &b, int64_t O, float *y) {
  const int64_t plane = b.plane(O);
  for (int64_t r = b.first; r < b.first + b.rows; r++) {
    float *to = y + b.pixel(r) * O;
    for (int64_t t = 0; t < b.across(); t++, from += O, to += 2 * O)
      for (int64_t o = 0; o < O; o += LANES) {
        vec h[2][4];
        for (int j = 0; j < 4; j++) {
          vec m[4];
          for (int i = 0; i < 4; i++) m[i] = load(from + (4 * i + j) * plane + o);
          h[0][j] = m[0] + m[1] + m[2];
          h[1][j] = m[1] - m[2] - m[3];
        }
        for (int i = 0; i < 2; i++) {
          store(to + i * b.width * O + o, h[i][0] + h[i][1] + h[i][2]);
          store(to + (i * b.width + 1) * O + o, h[i][1] - h[i][2] - h[i][3]);
        }
      }
  }
}

// A g A' of each tile, as [points, tiles, O].
static void from_gradient(const float *grad, const Block &b, int64_t O, float *to) {
  const int64_t plane = b.plane(O);
  for (int64_t r = b.first; r < b.first + b.rows; r++) {
    const float *from = grad + b.pixel(r) * O;
    for (int64_t t = 0; t < b.across(); t++, to += O, from += 2 * O)
      for (int64_t o = 0; o < O; o += LANES) {
        vec h[4][2];
        for (int j = 0; j < 2; j++) {
          const vec upper = load(from + j * O + o), lower = load(from + (b.width + j) * O + o);
          h[0][j] = upper;
          h[1][j] = upper + lower;
          h[2][j] = upper - lower;
          h[3][j] = -lower;
        }
        for (int i = 0; i < 4; i++) {
          float *point = to + 4 * i * plane + o;
          store(point, h[i][0]);
          store(point + plane, h[i][0] + h[i][1]);
          store(point + 2 * plane, h[i][0] - h[i][1]);
          store(point + 3 * plane, -h[i][1]);
        }
      }
  }
}

// out[i, o] (+)= sum over groups and their terms s of a[group, i, s] b[group, s, o], for ROWS of i and VECS vectors of o.
// ROW and STEP are how far apart i and s are in a. They are constants and the loops unrolled so that all stays in registers.
template <int64_t ROW, int64_t STEP, int64_t VECS, bool ADD>
static void sum_up(const float *a, int64_t groups, int64_t apart, int64_t terms, const float *b, int64_t O, float *out) {
  vec total[ROWS][VECS];
#pragma GCC unroll 8
  for (int64_t i = 0; i < ROWS; i++)
#pragma GCC unroll 2
    for (int64_t j = 0; j < VECS; j++) total[i][j] = ADD ? load(out + i * O + LANES * j) : vec{};
  for (int64_t group = 0; group < groups; group++, a += apart) {
    const float *at = a;
    for (int64_t s = 0; s < terms; s++, at += STEP, b += O) {
      vec v[VECS];
      for (int64_t j = 0; j < VECS; j++) v[j] = load(b + LANES * j);
#pragma GCC unroll 8
      for (int64_t i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int64_t j = 0; j < VECS; j++) total[i][j] += all(at[i * ROW]) * v[j];
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < ROWS; i++)
#pragma GCC unroll 2
    for (int64_t j = 0; j < VECS; j++) store(out + i * O + LANES * j, total[i][j]);
}

template <int64_t VECS>
static void multiply_outputs(const float *inputs, const float *weight, float *products, const Block &b, int64_t C, int64_t O) {
  for (int64_t o = 0; o < O; o += LANES * VECS)
    for (int64_t t = 0; t < b.tiles(); t += ROWS)
      sum_up<STRIP, 1, VECS, false>(inputs + t * STRIP, C / STRIP, b.room * STRIP, STRIP, weight + o, O, products + t * O + o);
}

template <int64_t VECS>
static void multiply_weights(const float *inputs, const float *grads, float *result, const Block &b, int64_t C, int64_t O) {
  for (int64_t o = 0; o < O; o += LANES * VECS)
    for (int64_t c = 0; c < C; c += ROWS)
      sum_up<1, STRIP, VECS, true>(inputs + c / STRIP * b.room * STRIP + c % STRIP, 1, 0, b.tiles(), grads + o, O, result + c * O + o);
}

// Go through all tiles, a block that fits into the cache at a time; step(block, inputs, others) does what there is to do.
template <typename Step>
static void in_blocks(int64_t images, int64_t height, int64_t width, int64_t C, int64_t O, Step step) {
  static thread_local std::vector<float> inputs, others;
  const int64_t all = images * height / 2, tiles = std::max<int64_t>(64, FLOATS / std::max(C, O));
  const int64_t most = std::min(all, std::max<int64_t>(1, 2 * tiles / width));
  Block b{height, width, 0, most, (most * width / 2 + ROWS - 1) / ROWS * ROWS};
  inputs.resize(std::max<size_t>(inputs.size(), POINTS * b.plane(C)));
  others.resize(std::max<size_t>(others.size(), POINTS * b.plane(O)));
  for (; b.first < all; b.first += most) {
    b.rows = std::min(most, all - b.first);
    step(b, inputs.data(), others.data());
  }
}

// y [images, height, width, O] of x [images, height, width, C] and of transformed weights [points, C, O].
extern "C" void convolve(const float *x, const float *weight, float *y, int64_t images, int64_t height, int64_t width,
                         int64_t C, int64_t O) {
  auto *multiply = O % (LANES * WIDE) ? multiply_outputs<1> : multiply_outputs<WIDE>;
  in_blocks(images, height, width, C, O, [=](const Block &b, float *inputs, float *products) {
    from_input(x, b, C, inputs);
    for (int k = 0; k < POINTS; k++)
      multiply(inputs + k * b.plane(C), weight + k * C * O, products + k * b.plane(O), b, C, O);
    to_output(products, b, O, y);
  });
}

// The gradient of the transformed weights, [points, C, O].
extern "C" void weight_gradient(const float *x, const float *grad, float *result, int64_t images, int64_t height,
                                int64_t width, int64_t C, int64_t O) {
  auto *multiply = O % (LANES * WIDE) ? multiply_weights<1> : multiply_weights<WIDE>;
  std::memset(result, 0, POINTS * C * O * sizeof(float));
  in_blocks(images, height, width, C, O, [=](const Block &b, float *inputs, float *grads) {
    from_input(x, b, C, inputs);
    from_gradient(grad, b, O, grads);
    for (int k = 0; k < POINTS; k++)
      multiply(inputs + k * b.plane(C), grads + k * b.plane(O), result + k * C * O, b, C, O);
  });
}
