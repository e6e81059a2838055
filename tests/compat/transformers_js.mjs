// Prints the embeddings (N, H) that transformers.js gives an export, as JSON.
// node transformers_js.mjs PACKAGES EXPORT POOLING DTYPE SENTENCES: PACKAGES is where npm installed it, SENTENCES are JSON.
import { createRequire } from "node:module";
import { dirname, basename } from "node:path";

const [packages, folder, pooling, dtype, sentences] = process.argv.slice(2);
const { env, pipeline } = createRequire(`${packages}/`)("@huggingface/transformers");
env.allowRemoteModels = false;
env.localModelPath = `${dirname(folder)}/`;
const extractor = await pipeline("feature-extraction", basename(folder), { dtype });
const embeddings = await extractor(JSON.parse(sentences), { pooling, normalize: true });
console.log(JSON.stringify(embeddings.tolist()));
