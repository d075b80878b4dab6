import os, signal, time
KEEPS = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        for request in requests:
            self.kept.append(request.get_response_sender())
            self.kept[-1].send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]))
    def finalize(self):
        print("finalized")
"""
def test_stop(model, serve, wait_until):
    model("keeps", KEEPS, more="model_transaction_policy { decoupled: true }")
    server = serve("--model-control-mode=explicit", "--load-model=keeps")
    import http.client, json, threading
    with server.streaming("keeps", IN=[1]) as events:
        next(events)
        (stub,) = server.stubs()
        t = threading.Thread(target=lambda: print("unload", server.request("POST", "/v2/repository/models/keeps/unload", "{}").status))
        t.start()
        wait_until(lambda: not server.is_ready() or "UNLOADING" in server.request("POST", "/v2/repository/index").body.decode())
        b = time.time()
        os.kill(stub.pid, signal.SIGKILL)
        print([*events])
        wait_until(lambda: "successfully unloaded" in server.log)
        print("took", time.time() - b)
        t.join()
    print(server.log[-1500:])
