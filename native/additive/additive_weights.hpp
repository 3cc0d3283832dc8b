// The channel weights w of additive scores, prepared once per call as the kernels read them.
//
// w/(1 + E) is 1/(1/w + E/w): a channel's weight goes into its denominator, and no numerator needs it. A row holds
//
//     times   −2·w / softcap                           (padded D), for the kernels that take w apart
//     over    2^-15 / ŵ,  ŵ = w / (the largest |w|)     (padded D); a |ŵ| below 2^-26 counts as that, by an error of 2^-26;
//                                                      1 beyond D
//     base    Σ w / softcap
//     unit    −2·(the largest |w|) / softcap · 2^-15:   score = base + unit · Σ_{c < D} 1 / (over_c + over_c·E_c)
//     reach   the largest E for which the product of eight denominators over_c·(1 + E_c) stays a normal number, in every
//             group of eight channels that share one reciprocal; 0 where there is none to speak of
//
// Eight denominators are at least 2^-120. With E ≤ 2^n they are at most 2^(8n − 120) / Π ŵ, which is to stay below 2^126;
// for n ≥ 15 that bounds every part of the product too.
#pragma once

#include <cmath>
#include <vector>

#include "additive/additive.hpp"

namespace regard {

// Errors of a score are in proportion to Σ |w| (additive_scores.hpp). Beyond this they would show in a weight: the caller
// then computes the explicit tanh.
inline constexpr double most_weight = 1024;

class Weights {
    std::vector<float> rows;
    View of;

   public:
    bool in_range = true;  // Σ |w| ≤ most_weight in every head

    Weights(const View& w, const Dot& job, int lanes) {
        const int64_t batches = w.batch ? job.batches : 1, heads = w.head ? job.heads : 1, row = weight_row(job.width);
        rows.resize(batches * heads * row);
        of = {rows.data(), w.batch ? heads * row : 0, w.head ? row : 0, 0};
        for (int64_t n = 0; n < batches * heads; ++n)
            prepare(w.data + n / heads * w.batch + n % heads * w.head, job, lanes, rows.data() + n * row);
    }

    View view() const { return of; }

   private:
    void prepare(const float* w, const Dot& job, int lanes, float* to) {
        const float share = job.softcap > 0 ? 1.0f / job.softcap : 1.0f;
        const int64_t whole = padded(job.width);
        float largest = 0;
        double sum = 0, size = 0;
        for (int64_t c = 0; c < job.width; ++c) {
            largest = std::abs(w[c]) > largest ? std::abs(w[c]) : largest;
            sum += w[c];
            size += std::abs(w[c]);
        }
        in_range &= size <= most_weight;  // not so for NaN
        if (!(largest > 0)) largest = 1;
        float* over = to + whole;
        for (int64_t c = 0; c < whole; ++c) {
            const float x = c < job.width ? w[c] / largest : 0.0f;
            to[c] = c < job.width ? -2.0f * share * w[c] : 0.0f;
            over[c] = c < job.width ? 0x1p-15f / (std::abs(x) > 0x1p-26f ? x : 0x1p-26f) : 1.0f;
        }
        const double unit = -2.0 * share * largest * 0x1p-15;
        over[whole] = float(sum * share);
        over[whole + 1] = float(unit);
        over[whole + 2] = reach(over, whole, lanes);
    }

    static float reach(const float* over, int64_t whole, int lanes) {
        double most = 0;
        for (int64_t c = 0; c < whole; c += 8 * lanes)
            for (int64_t l = 0; l < lanes; ++l) {
                double bits = 0;
                for (int64_t n = c + l; n < c + 8 * lanes && n < whole; n += lanes) bits += std::log2(std::abs(over[n])) + 15;
                most = bits > most ? bits : most;
            }
        const double n = (245 - most) / 8;
        return n < 15 ? 0.0f : float(std::exp2(n < 60 ? n : 60));
    }
};

}  // namespace regard
