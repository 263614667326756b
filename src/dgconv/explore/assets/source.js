// Where answers come from: the server, or the page itself where it was written to a file.
// A source has look(image, rate) and average(rate), the rate given by its place on the slider, and worth(); a live one
// also has upload(file) and image(number). All return promises, and fail with an Error that says why.

function liveSource(data) {
  const answers = new Map();

  async function ask(path, options) {
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new Error("The server does not answer. Is dgconv explore still running in its terminal?");
    }
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }

  function askOnce(path) {
    if (!answers.has(path)) {
      const answer = ask(path);
      answers.set(path, answer);
      answer.catch(() => answers.delete(path));
    }
    return answers.get(path);
  }

  return {
    look: (image, rate) => askOnce(`api/look?image=${encodeURIComponent(image.id)}&rate=${data.rates[rate]}`),
    average: (rate) => askOnce(`api/average?rate=${data.rates[rate]}`),
    worth: () => askOnce("api/worth"),
    image: (number) => ask(`api/image?number=${encodeURIComponent(number)}`),
    upload: async (file) => {
      if (file.size > data.maxBytes) {
        const megabytes = (bytes) => `${Math.round(bytes / 1e6)} MB`;
        throw new Error(
          `${file.name} has ${megabytes(file.size)}; at most ${megabytes(data.maxBytes)} are accepted. Make it smaller`,
        );
      }
      return { ...(await ask("api/upload", { method: "POST", body: file })), name: file.name };
    },
  };
}

function staticSource(data) {
  return {
    look: async (image, rate) => data.looks[image.id][rate],
    average: async (rate) => data.averages[rate],
    worth: async () => data.worth,
  };
}
