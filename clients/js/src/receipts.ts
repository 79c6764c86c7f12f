/** A device's memory of having reported: the report itself, to be uploaded again and never made again. */
import { type Bytes, hex, unhex } from "./digests.js";

/** Where a receipt is kept. Both may answer at once or later. */
export interface Receipt {
  /** The report that was left, null where none was. What is no whole report says that there was one, too. */
  there(): Bytes | null | Promise<Bytes | null>;
  /** Keep the report for good, before it leaves the device: false if there was one already. */
  leave(report: Bytes): boolean | Promise<boolean>;
}

type Storage = Pick<globalThis.Storage, "getItem" | "setItem">;

/** In `localStorage`, one at a time across tabs where the browser has locks. */
export function storageReceipt(name = "capri-reported", storage: Storage = globalThis.localStorage): Receipt {
  const there = () => {
    const left = storage.getItem(name);
    return left === null ? null : unhex(left);
  };
  const locks = (globalThis.navigator as Navigator | undefined)?.locks;
  return {
    there,
    leave: (report) => {
      const leave = () => {
        if (there()) return false;
        storage.setItem(name, hex(report));
        if (!there()) throw new Error("the receipt cannot be kept: nothing was reported");
        return true;
      };
      return locks ? locks.request(name, leave) : leave();
    },
  };
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
    there: async () => {
      const left: unknown = await ask("readonly", (store) => store.get(1));
      return left === undefined ? null : new Uint8Array(left as Bytes);
    },
    leave: async (report) => {
      try {
        await ask("readwrite", (store) => store.add(report, 1));
        return true;
      } catch (problem) {
        if ((problem as DOMException | null)?.name === "ConstraintError") return false;
        throw problem;
      }
    },
  };
}
