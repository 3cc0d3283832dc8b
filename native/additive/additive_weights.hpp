// Prepares the channel weights w of additive scores, once per call.
//
// w/(1 + E) = 1/(1/w + E/w): with the weight in the denominator, all numerators are 1. A row contains
//
//     scaled_w    −2·w / softcap                    (padded D), for kernels that multiply by w
//     inverse_w   2^-15 / ŵ,  ŵ = w / max |w|       (padded D); |ŵ| below 2^-26 is replaced by 2^-26; 1 from D on
//     base        Σ w / softcap
//     unit        −2·max |w| / softcap · 2^-15:     score = base + unit · Σ_{c < D} 1 / (inverse_w_c·(1 + E_c))
//     fast_limit  the largest E for which the product of the eight denominators inverse_w_c·(1 + E_c) that share a
//                 reciprocal is a normal number; 0 if it is too small to be useful
//
// The product is at least 2^-120. With E ≤ 2^n it is at most 2^(8n − 120) / Π ŵ, which must be below 2^126. For n ≥ 15 this
// also bounds every partial product.
#pragma once

#include <cmath>
#include <vector>

#include "additive/additive.hpp"

namespace regard {

// The error of a score is proportional to Σ |w| (additive_scores.hpp). Above this limit it would be visible in the weights,
// and the caller computes the explicit tanh instead.
inline constexpr double max_weight_sum = 1024;

class Weights {
    std::vector<float> rows;
    View prepared;

   public:
    bool in_range = true;  // Σ |w| ≤ most_weight in every head

    Weights(const View& w, const Dot& job, int lanes) {
        const int64_t batches = w.batch ? job.batches : 1, heads = w.head ? job.heads : 1, row = weight_row(job.width);
        rows.resize(batches * heads * row);
        prepared = {rows.data(), w.batch ? heads * row : 0, w.head ? row : 0, 0};
        for (int64_t n = 0; n < batches * heads; ++n)
            prepare(w.data + n / heads * w.batch + n % heads * w.head, job, lanes, rows.data() + n * row);
    }

    View view() const { return prepared; }

   private:
    void prepare(const float* w, const Dot& job, int lanes, float* output) {
        const float inverse_softcap = job.softcap > 0 ? 1.0f / job.softcap : 1.0f;
        const int64_t padded_width = padded(job.width);
        float largest = 0;
        double sum = 0, absolute_sum = 0;
        for (int64_t c = 0; c < job.width; ++c) {
            largest = std::abs(w[c]) > largest ? std::abs(w[c]) : largest;
            sum += w[c];
            absolute_sum += std::abs(w[c]);
        }
        in_range &= absolute_sum <= max_weight_sum;  // false for NaN
        if (!(largest > 0)) largest = 1;
        float* inverse_w = output + padded_width;
        for (int64_t c = 0; c < padded_width; ++c) {
            const float x = c < job.width ? w[c] / largest : 0.0f;
            output[c] = c < job.width ? -2.0f * inverse_softcap * w[c] : 0.0f;
            inverse_w[c] = c < job.width ? 0x1p-15f / (std::abs(x) > 0x1p-26f ? x : 0x1p-26f) : 1.0f;
        }
        const double unit = -2.0 * inverse_softcap * largest * 0x1p-15;
        inverse_w[padded_width] = float(sum * inverse_softcap);
        inverse_w[padded_width + 1] = float(unit);
        inverse_w[padded_width + 2] = fast_limit(inverse_w, padded_width, lanes);
    }

    static float fast_limit(const float* inverse_w, int64_t padded_width, int lanes) {
        double max_bits = 0;
        for (int64_t c = 0; c < padded_width; c += 8 * lanes)
            for (int64_t l = 0; l < lanes; ++l) {
                double bits = 0;
                for (int64_t n = c + l; n < c + 8 * lanes && n < padded_width; n += lanes)
                    bits += std::log2(std::abs(inverse_w[n])) + 15;
                max_bits = bits > max_bits ? bits : max_bits;
            }
        const double n = (245 - max_bits) / 8;
        return n < 15 ? 0.0f : float(std::exp2(n < 60 ? n : 60));
    }
};

}  // namespace regard
