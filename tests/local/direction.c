/* Directions by docs/reference/wire.md alone. Reads the table (2,048 numbers of 16 bits), then lines
   "token row dimension"; writes the coordinates of each direction. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint16_t table[2048];

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static uint64_t word(uint64_t first, uint64_t second, uint64_t row, uint64_t j) {
    uint64_t inner = mix(first + j * UINT64_C(0x9E3779B97F4A7C15));
    return mix(inner ^ (second + (row + 1) * UINT64_C(0xD1342543DE82EF95)));
}

int main(int argc, char **argv) {
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!file || fread(table, 2, 2048, file) != 2048) return 1;
    fclose(file);
    char token[33];
    unsigned row, dimension;
    while (scanf("%32s %u %u", token, &row, &dimension) == 3) {
        uint64_t halves[2] = {0, 0};
        for (int i = 0; i < 16; i++) {
            unsigned byte;
            sscanf(token + 2 * i, "%2x", &byte);
            halves[i / 8] |= (uint64_t)byte << 8 * (i % 8);
        }
        int32_t entries[4096];
        int64_t squares = 0;
        for (unsigned i = 0; i < dimension; i++) {
            unsigned bits = word(halves[0], halves[1], row, i / 4) >> (16 * (i % 4) + 4) & 0xFFF;
            entries[i] = bits < 2048 ? table[bits] : -(int32_t)table[bits - 2048];
            squares += (int64_t)entries[i] * entries[i];
        }
        double scale = 16777216.0 / sqrt((double)squares);
        for (unsigned i = 0; i < dimension; i++) printf("%.0f ", rint(entries[i] * scale));
        printf("\n");
    }
    return 0;
}
