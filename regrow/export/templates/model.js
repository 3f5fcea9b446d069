/** Runs a network that regrow exported: browsers, workers, Node.js and Deno. Types are in model.d.ts. */

/** Load a network from a URL or path, a Response, bytes, or a compiled module. */
export async function load(source = new URL("model.wasm", import.meta.url)) {
  const module = source instanceof WebAssembly.Module ? source : await compile(await read(source));
  const [section] = WebAssembly.Module.customSections(module, "regrow");
  if (!section) throw new Error('not a model by regrow: the module has no section "regrow"');
  const info = JSON.parse(new TextDecoder().decode(section.slice(0, -4))); // the last 4 bytes are the checksum
  const { memory, run, x, y } = (await WebAssembly.instantiate(module)).exports;
  const inputs = count(info.input), input = new Float32Array(memory.buffer, x.value, inputs);
  const output = new Float32Array(memory.buffer, y.value, count(info.output));
  return {
    info,
    /** Run the network on one input, channel by channel, row by row. */
    run(values) {
      if (values?.length !== inputs) {
        throw new RangeError(`run takes ${inputs} numbers (${info.input.join(" x ")}), got ${values?.length ?? values}`);
      }
      input.set(values);
      run();
      return output.slice();
    },
  };
}

const count = (shape) => shape.reduce((product, size) => product * size, 1);

async function read(source) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (globalThis.process?.versions?.node && !(source instanceof Response) && !/^https?:/.test(source)) {
    const files = "node:fs/promises"; // not a literal in the import, which bundlers for browsers would try to find
    return (await import(/* webpackIgnore: true */ /* @vite-ignore */ files)).readFile(source);
  }
  const response = source instanceof Response ? source : await fetch(source);
  if (!response.ok) throw new Error(`cannot load ${response.url || source}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

async function compile(bytes) {
  // The file ends with the CRC-32 of all bytes before it, so the CRC-32 of the whole file is always this constant.
  if (crc32(bytes) !== 0x2144df1c) {
    throw new Error(`not a model by regrow, or damaged: the checksum of its ${bytes.length} bytes is wrong`);
  }
  try {
    return await WebAssembly.compile(bytes);
  } catch (cause) {
    const simd = WebAssembly.validate(SIMD) ? "" : " (it has no WebAssembly SIMD)";
    throw new Error(`this JavaScript engine cannot compile the model${simd}: ${cause.message}`, { cause });
  }
}

const SIMD = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0,
  253, 15, 253, 98, 11]);

function crc32(bytes) {
  const table = Int32Array.from({ length: 256 }, (_, n) => {
    for (let bit = 0; bit < 8; bit++) n = (n >>> 1) ^ (n & 1 && 0xedb88320);
    return n;
  });
  return ~bytes.reduce((crc, byte) => (crc >>> 8) ^ table[(crc ^ byte) & 255], -1) >>> 0;
}
