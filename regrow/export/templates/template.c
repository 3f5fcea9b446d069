/* The engine as a WebAssembly module without a network. This file is compiled after the engine's kernels, once, by
 * `make template`; `wasm_module.py` then adds plan and weights as data segments, so that exporting needs no compiler.
 *
 * The module imports nothing, and its memory never grows. `model` has the addresses of all parts; a data segment fills
 * it in. `unpack` is the module's start function: it runs once, when the module is instantiated.
 */

struct model {
    const struct op *plan;
    int32_t count; /* of operations */
    char *constants;
    char *arena;
    float *x, *y;
    const uint8_t *packed; /* the stored weights, in the arena; `unpack` clears them */
    int32_t packed_bytes;
};

struct model model;

void run(void)
{
    const struct frame f = {model.constants, model.arena, model.x, model.y, 0, 1, 0, 1};
    for (int i = 0; i < model.count; i += run_next(model.plan + i, &f)) continue;
}

/* ---------------------------------------------------------------------------------------------- stored weights */

/* The stored weights of a layer. These parts follow the header `struct packed`, each aligned to four bytes:
 *
 *   int32 taps[taps]          bytes from a channel's first pixel to the one that each weight of a window reads
 *   float scales[rows]        scale of each row, for 8-bit weights
 *   values                    the weights of all rows, `bits` bits each
 *   uint8 gaps[gap_bytes]     distance of each weight from the one before it in its row; 255 means that the next
 *                             byte is added. If gap_bytes is 0, no weight is missing.
 *
 * A row has the weights of an output channel in one block of input channels. */

struct reader {
    const uint8_t *values, *gaps;
    const float *scales;
    int bits;
};

static float next_value(struct reader *r, int row)
{
    float value;
    if (r->bits == 32) {
        __builtin_memcpy(&value, r->values, 4);
    } else if (r->bits == 16) { /* shift the bits into place, and correct the exponent by a product */
        const uint32_t half = r->values[0] | (uint32_t)r->values[1] << 8, magnitude = (half & 0x7fff) << 13;
        __builtin_memcpy(&value, &magnitude, 4);
        value *= half & 0x8000 ? -0x1p112f : 0x1p112f;
    } else {
        value = (float)(int8_t)r->values[0] * r->scales[row];
    }
    r->values += r->bits / 8;
    return value;
}

static int next_gap(struct reader *r)
{
    int gap = 0;
    if (!r->gaps) return 1;
    while (*r->gaps == 255) gap += *r->gaps++;
    return gap + *r->gaps++;
}

/* Stores weight k of n of member m of a group. Kernels read four weights of a member at a time, the rest one by one. */
static void put_conv(uint32_t *group, int together, int n, int m, int k, uint32_t offset, uint32_t value)
{
    const int in_fours = k < n / 4 * 4;
    uint32_t *at = in_fours ? group + 8 * (k / 4 * together + m) + k % 4 : group + 2 * (k * together + m);
    at[0] = offset, at[in_fours ? 4 : 1] = value;
}

static void unpack_sparse(const struct packed *p, const int32_t *taps, struct reader *r)
{
    const int32_t *starts = (const int32_t *)(model.constants + p->starts);
    uint32_t *entries = (uint32_t *)(model.constants + p->entries);
    for (int group = 0; group < p->groups; group++) {
        const int n = starts[group + 1] - starts[group];
        const int backwards = p->packing == SPARSE_CONV && group % p->groups_per_block % 2;
        uint32_t *to = entries + 2 * starts[group] * p->together;
        for (int m = 0; m < p->together; m++) {
            int place = -1;
            for (int k = 0; k < n; k++) {
                union {
                    float number;
                    uint32_t word;
                } value;
                place += next_gap(r);
                const int at = backwards ? p->length - 1 - place : place;
                const uint32_t offset = (uint32_t)(at / p->taps * p->pitch + taps[at % p->taps]);
                value.number = next_value(r, group * p->together + m);
                if (p->packing == SPARSE_CONV)
                    put_conv(to, p->together, n, m, k, offset, value.word);
                else
                    to[2 * k] = offset, to[2 * k + 1] = value.word;
            }
        }
    }
}

/* Dense weights are stored in blocks of LANES outputs, column by column. */
static void unpack_dense(const struct packed *p, struct reader *r)
{
    float *to = (float *)(model.constants + p->entries);
    for (int row = 0; row < p->groups; row++)
        for (int i = 0; i < p->length; i++)
            to[(row / LANES * p->length + i) * LANES + row % LANES] = next_value(r, row);
}

void unpack(void)
{
    const uint8_t *at = model.packed, *end = at + model.packed_bytes;
    while (at < end) {
        const struct packed *p = (const struct packed *)at;
        const int32_t *taps = (const int32_t *)(p + 1);
        const float *scales = (const float *)(taps + p->taps);
        const uint8_t *values = (const uint8_t *)(scales + (p->bits == 8 ? p->groups * p->together : 0));
        const uint8_t *gaps = values + (p->count * p->bits / 8 + 3) / 4 * 4;
        struct reader r = {values, p->gap_bytes ? gaps : 0, scales, p->bits};
        if (p->packing == DENSE_LINEAR)
            unpack_dense(p, &r);
        else
            unpack_sparse(p, taps, &r);
        at = gaps + (p->gap_bytes + 3) / 4 * 4;
    }
    __builtin_memset((void *)model.packed, 0, (size_t)model.packed_bytes);
}
