/** Strokes to pixels, the way MNIST was made, and strokes of digits to try them with. No canvas: this runs anywhere. */

const SIZE = 28, BOX = 20; // MNIST: digits fit into 20 x 20 pixels, their center of mass in the middle of 28 x 28

/** Anti-aliased pixels in [0, 1] of strokes, each a list of [x, y] in any unit; null if there is nothing. */
export function rasterize(strokes, pen = 2.3) {
  const points = strokes.flat();
  if (!points.length) return null;
  const [left, right] = range(points.map(([x]) => x)), [top, bottom] = range(points.map(([, y]) => y));
  const extent = Math.max(right - left, bottom - top, 1e-6), scale = (BOX - pen) / extent;
  const placed = (dx, dy) => strokes.map((stroke) => stroke.map(([x, y]) => [
    (x - (left + right) / 2) * scale + SIZE / 2 + dx, (y - (top + bottom) / 2) * scale + SIZE / 2 + dy,
  ]));
  const first = paint(placed(0, 0), pen), [x, y] = centerOfMass(first);
  return paint(placed(SIZE / 2 - x, SIZE / 2 - y), pen);
}

const range = (values) => [Math.min(...values), Math.max(...values)];

/** Pixels darken with the distance of their center from the nearest line. */
function paint(strokes, pen) {
  const pixels = new Float32Array(SIZE * SIZE);
  for (const stroke of strokes) {
    for (let i = 0; i < Math.max(1, stroke.length - 1); i++) {
      const [ax, ay] = stroke[i], [bx, by] = stroke[Math.min(i + 1, stroke.length - 1)], reach = pen / 2 + 1;
      const [x0, x1] = range([ax, bx]), [y0, y1] = range([ay, by]);
      for (let row = clip(y0 - reach); row < clip(y1 + reach + 1); row++) {
        for (let col = clip(x0 - reach); col < clip(x1 + reach + 1); col++) {
          const far = distance(col + 0.5, row + 0.5, ax, ay, bx, by);
          const ink = Math.min(1, Math.max(0, (pen / 2 + 0.6 - far) / 1.2)), at = row * SIZE + col;
          pixels[at] = Math.max(pixels[at], ink);
        }
      }
    }
  }
  return pixels;
}

const clip = (value) => Math.min(SIZE, Math.max(0, Math.floor(value)));

function distance(x, y, ax, ay, bx, by) {
  const dx = bx - ax, dy = by - ay, length = dx * dx + dy * dy;
  const t = length ? Math.min(1, Math.max(0, ((x - ax) * dx + (y - ay) * dy) / length)) : 0;
  return Math.hypot(x - ax - t * dx, y - ay - t * dy);
}

function centerOfMass(pixels) {
  let x = 0, y = 0, sum = 1e-9;
  pixels.forEach((ink, i) => {
    x += ink * ((i % SIZE) + 0.5), y += ink * (Math.floor(i / SIZE) + 0.5), sum += ink;
  });
  return [x / sum, y / sum];
}

/** Points on an ellipse; angles in degrees, 0 is at the right, 90 below. */
function arc(cx, cy, rx, ry, from, to) {
  const steps = Math.ceil(Math.abs(to - from) / 12);
  return Array.from({ length: steps + 1 }, (_, i) => {
    const angle = ((from + ((to - from) * i) / steps) * Math.PI) / 180;
    return [cx + rx * Math.cos(angle), cy + ry * Math.sin(angle)];
  });
}

/** Strokes of every digit in several styles, in a square from 0 to 1. */
export const DIGITS = [
  [[arc(0.5, 0.5, 0.28, 0.42, -90, 270)], [arc(0.5, 0.5, 0.4, 0.4, -60, 300)], [arc(0.5, 0.5, 0.2, 0.42, -110, 245)]],
  [[[[0.5, 0.08], [0.5, 0.92]]], [[[0.34, 0.26], [0.52, 0.08], [0.52, 0.92]]], [[[0.6, 0.08], [0.42, 0.92]]]],
  [
    [[...arc(0.5, 0.32, 0.28, 0.24, 190, 380), [0.2, 0.92], [0.84, 0.92]]],
    [[...arc(0.48, 0.3, 0.26, 0.22, 180, 395), ...arc(0.34, 0.82, 0.14, 0.1, 0, -290), [0.84, 0.9]]],
    [[[0.22, 0.16], [0.74, 0.12], [0.72, 0.36], [0.24, 0.9], [0.8, 0.88]]],
  ],
  [
    [[...arc(0.46, 0.3, 0.26, 0.21, 200, 440), ...arc(0.46, 0.7, 0.3, 0.22, -80, 160)]],
    [[[0.22, 0.12], [0.74, 0.12], [0.46, 0.44], ...arc(0.46, 0.67, 0.28, 0.24, -90, 150)]],
    [[...arc(0.44, 0.3, 0.3, 0.2, 210, 445), ...arc(0.44, 0.72, 0.24, 0.21, -85, 150)]],
  ],
  [
    [[[0.28, 0.1], [0.22, 0.56], [0.82, 0.56]], [[0.64, 0.3], [0.64, 0.94]]],
    [[[0.76, 0.62], [0.18, 0.62], [0.6, 0.08], [0.6, 0.94]]],
    [[[0.3, 0.08], [0.26, 0.5], [0.72, 0.48]], [[0.74, 0.08], [0.66, 0.94]]],
  ],
  [
    [[[0.32, 0.1], [0.28, 0.46], ...arc(0.46, 0.66, 0.28, 0.25, -125, 150)], [[0.32, 0.1], [0.76, 0.1]]],
    [[[0.76, 0.1], [0.34, 0.1], [0.3, 0.44], ...arc(0.46, 0.66, 0.26, 0.24, -120, 140)]],
    [[[0.8, 0.12], [0.4, 0.14], [0.32, 0.44], ...arc(0.44, 0.68, 0.32, 0.22, -110, 160)]],
  ],
  [
    [[[0.62, 0.08], [0.36, 0.38], ...arc(0.48, 0.68, 0.24, 0.23, 170, 530)]],
    [[[0.46, 0.06], [0.3, 0.5], ...arc(0.5, 0.7, 0.24, 0.22, 190, 520)]],
    [[...arc(0.62, 0.5, 0.36, 0.44, 280, 150), ...arc(0.5, 0.7, 0.24, 0.2, 150, 490)]],
  ],
  [
    [[[0.2, 0.12], [0.78, 0.12], [0.42, 0.92]]],
    [[[0.2, 0.14], [0.8, 0.12], [0.46, 0.92]], [[0.36, 0.52], [0.76, 0.5]]],
    [[[0.22, 0.28], [0.22, 0.14], [0.76, 0.12], ...arc(0.98, 0.9, 0.48, 0.6, 230, 180)]],
  ],
  [
    [[...arc(0.5, 0.3, 0.22, 0.2, 90, 450), ...arc(0.5, 0.71, 0.26, 0.21, -90, 270)]],
    [[...arc(0.5, 0.3, 0.2, 0.2, -30, -270), ...arc(0.5, 0.71, 0.24, 0.21, -90, 210), [0.66, 0.26]]],
    [[...arc(0.5, 0.3, 0.26, 0.2, 90, 450)], [...arc(0.5, 0.7, 0.26, 0.2, -90, 270)]],
  ],
  [
    [[...arc(0.48, 0.32, 0.24, 0.22, 0, -360), [0.7, 0.92]]],
    [[...arc(0.48, 0.32, 0.22, 0.22, -20, -360), ...arc(0.36, 0.5, 0.36, 0.42, -10, 70)]],
    [[...arc(0.5, 0.3, 0.26, 0.21, -10, -350), [0.74, 0.2], [0.58, 0.92]]],
  ],
];
