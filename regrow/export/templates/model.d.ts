/** Facts about a network. */
export interface Info {
  /** Shape of one input, such as [3, 32, 32]: channels, rows, columns. */
  readonly input: readonly number[];
  /** Shape of one output, such as [10]. */
  readonly output: readonly number[];
  /** How the weights are stored in the file; the network computes in float32. */
  readonly weights: "fp32" | "fp16" | "int8";
  /** Size of the memory in bytes; it never grows. */
  readonly memory: number;
  /** Inputs are (pixel / 255 - mean) / std for each channel, if the exporter knew how the network was trained. */
  readonly mean?: readonly number[];
  readonly std?: readonly number[];
  /** Names of the outputs. */
  readonly classes?: readonly string[];
}

export interface Model {
  readonly info: Info;
  /** Run the network on one input, channel by channel, row by row. Throws a RangeError if the number of values is wrong. */
  run(values: ArrayLike<number>): Float32Array;
}

/** Load a network; without an argument, `model.wasm` beside this script. */
export function load(source?: string | URL | Response | ArrayBuffer | ArrayBufferView | WebAssembly.Module): Promise<Model>;
