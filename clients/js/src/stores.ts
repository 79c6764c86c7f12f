/** Where a device keeps what outlives a page: texts by name. */

/**
 * A place for texts. One function is all that a store of your own needs, for instance over React Native's AsyncStorage
 * behind a queue of promises.
 */
export interface Store {
  /**
   * Give `step` the texts of these names, null where there is none, in an array that it changes; then keep the array.
   * All of it or nothing: durable before the promise is kept, one step at a time for all tabs, and what `step` throws
   * leaves everything as it was. `step` may run again where another tab was faster.
   */
  change<T>(names: readonly string[], step: (texts: (string | null)[]) => T): Promise<T>;
}

/** For one page: forgets at its end. */
export function memoryStore(kept = new Map<string, string>()): Store {
  return {
    change: async (names, step) => {
      const texts = names.map((name) => kept.get(name) ?? null);
      const told = step(texts);
      names.forEach((name, i) => (texts[i] == null ? kept.delete(name) : kept.set(name, texts[i]!)));
      return told;
    },
  };
}

/** In IndexedDB, for pages and workers of one origin. */
export function databaseStore(name = "capri-device", factory: IDBFactory = globalThis.indexedDB): Store {
  const opened = () =>
    new Promise<IDBDatabase>((accept, refuse) => {
      const open = factory.open(name, 1);
      open.onupgradeneeded = () => open.result.createObjectStore("texts");
      open.onsuccess = () => accept(open.result);
      open.onerror = () => refuse(open.error);
    });
  return {
    change: async <T>(names: readonly string[], step: (texts: (string | null)[]) => T) => {
      const database = await opened();
      try {
        return await new Promise<T>((accept, refuse) => {
          const transaction = database.transaction("texts", "readwrite", { durability: "strict" });
          const store = transaction.objectStore("texts");
          const asked = names.map((each) => store.get(each));
          let told: T;
          let problem: unknown;
          transaction.oncomplete = () => accept(told);
          transaction.onabort = () => refuse(problem ?? transaction.error);
          // Answers come in the order of questions: with the last one all are there.
          asked.at(-1)!.onsuccess = () => {
            const before = asked.map((each) => (each.result as string | undefined) ?? null);
            const texts = [...before];
            try {
              told = step(texts);
            } catch (thrown) {
              problem = thrown;
              transaction.abort();
              return;
            }
            names.forEach((each, i) => {
              if (texts[i] === before[i]) return;
              if (texts[i] == null) store.delete(each);
              else store.put(texts[i], each);
            });
          };
        });
      } finally {
        database.close();
      }
    },
  };
}
