// As many floats as the machine works on at once. Channels come in strips of sixteen, one or two vectors each.
#pragma once
#include <cstdint>

#ifdef __AVX512F__
#define VECTOR_BYTES 64
#else
#define VECTOR_BYTES 32
#endif

typedef float vec __attribute__((vector_size(VECTOR_BYTES), aligned(4)));
typedef int32_t mask __attribute__((vector_size(VECTOR_BYTES)));
static const int64_t LANES = VECTOR_BYTES / 4, STRIP = 16, PAIR = STRIP / LANES;

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec v) { *(vec *)p = v; }
static inline vec all(float v) { return v - vec{}; }
