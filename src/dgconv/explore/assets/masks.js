// Which channels are kept, as the session packs them, and how alike two such choices are.

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

// One layer's choice: 1 where head * channels + channel is kept, else 0.
function unpackMask(base64, size) {
  const bytes = bytesOf(base64);
  return Uint8Array.from({ length: size }, (_, i) => (bytes[i >> 3] >> (7 - (i & 7))) & 1);
}

function countKept(mask) {
  return mask.reduce((sum, kept) => sum + kept, 0);
}

// The Jaccard index, channels both keep over channels either keeps, averaged over the heads that keep any.
// null where no head of either image keeps anything.
function overlap(a, b, heads) {
  const channels = a.length / heads;
  const indices = [];
  for (let head = 0; head < heads; head++) {
    let both = 0;
    let either = 0;
    for (let i = head * channels; i < (head + 1) * channels; i++) {
      both += a[i] & b[i];
      either += a[i] | b[i];
    }
    if (either) indices.push(both / either);
  }
  return mean(indices);
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}
