/** A device's memory of having reported. */

/** Where a receipt is kept. Both may answer at once or later. */
export interface Receipt {
  /** Whether there is one. */
  there(): boolean | Promise<boolean>;
  /** Create it for good, before anything is drawn: false if there was one already. */
  leave(): boolean | Promise<boolean>;
}

type Storage = Pick<globalThis.Storage, "getItem" | "setItem">;

/** In `localStorage`, one at a time across tabs where the browser has locks. */
export function storageReceipt(name = "capri-reported", storage: Storage = globalThis.localStorage): Receipt {
  const there = () => storage.getItem(name) !== null;
  const leave = () => {
    if (there()) return false;
    storage.setItem(name, "1");
    if (!there()) throw new Error("the receipt cannot be kept: nothing was reported");
    return true;
  };
  const locks = (globalThis.navigator as Navigator | undefined)?.locks;
  return { there, leave: () => (locks ? locks.request(name, leave) : leave()) };
}

/** In IndexedDB, whose `add` fails where there is one: also in workers. */
export function databaseReceipt(name = "capri-reported", factory: IDBFactory = globalThis.indexedDB): Receipt {
  const ask = async <T>(mode: IDBTransactionMode, run: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> => {
    const open = factory.open(name, 1);
    open.onupgradeneeded = () => open.result.createObjectStore("receipts");
    const done = <R>(request: IDBRequest<R>) =>
      new Promise<R>((accept, refuse) => {
        request.onsuccess = () => accept(request.result);
        request.onerror = () => refuse(request.error);
      });
    const database = await done(open);
    try {
      const transaction = database.transaction("receipts", mode, { durability: "strict" });
      const kept = new Promise<void>((accept, refuse) => {
        transaction.oncomplete = () => accept();
        transaction.onabort = () => refuse(transaction.error);
      });
      const [result] = await Promise.all([done(run(transaction.objectStore("receipts"))), kept]);
      return result;
    } finally {
      database.close();
    }
  };
  return {
    there: async () => (await ask("readonly", (store) => store.count(1))) > 0,
    leave: async () => {
      try {
        await ask("readwrite", (store) => store.add(1, 1));
        return true;
      } catch (problem) {
        if ((problem as DOMException | null)?.name === "ConstraintError") return false;
        throw problem;
      }
    },
  };
}
